#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rule {
    uint8_t net[16];
    uint16_t bits, plen;
    int allow;
};
struct acl {
    const struct rule *rule;
    size_t n;
    int otherwise;
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Compares bit by bit; the address is in a block of its exact size. */
static int right(const struct acl *acl, const uint8_t *address, unsigned int bits)
{
    int want = acl->otherwise;
    for (size_t i = acl->n; i-- > 0;) {
        const struct rule *r = &acl->rule[i];
        int match = r->bits == bits;
        for (unsigned int k = 0; match && k < r->plen; k++)
            match = (r->net[k / 8] >> (7 - k % 8) & 1) == (address[k / 8] >> (7 - k % 8) & 1);
        if (match)
            want = r->allow;
    }
    uint8_t *exact = malloc(bits / 8);
    if (exact == NULL)
        exit(2);
    memcpy(exact, address, bits / 8);
    const int got = acl_verdict(acl, exact, bits);
    free(exact);
    return got == want;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            struct rule rule[5];
            memset(rule, 0, sizeof rule);
            const struct acl acl = {rule, rnd() % 6, -1};
            uint8_t address[16] = {10, 1, (uint8_t)rnd(), (uint8_t)rnd(), 7};
            const unsigned int bits = rnd() % 2 ? 32 : 128;
            for (int k = 0; k < 5; k++) {
                rule[k].bits = rnd() % 2 ? 32 : 128;
                rule[k].plen = (uint16_t)(rnd() % 4 ? rnd() % (rule[k].bits + 1u) : rule[k].bits);
                rule[k].allow = k;
                memcpy(rule[k].net, address, rule[k].bits / 8);
                if (rnd() % 4)
                    rule[k].net[rnd() % (rule[k].bits / 8)] ^= (uint8_t)(1 << rnd() % 8);
            }
            if (!right(&acl, address, bits))
                return 77;
        }
        return 0;
    }
    const struct rule rule[] = {
        {{10, 1, 2, 3}, 32, 32, 1}, {{10, 1, 0xFF, 9}, 32, 17, 2}, {{10, 1, 2, 3}, 128, 128, 3}, {{0}, 32, 0, 4}};
    const struct acl acl = {rule, 4, -1};
    const uint8_t address[][16] = {{10, 1, 2, 4}, {10, 1, 0x80, 1}, {11}, {10, 1, 2, 3}};
    for (size_t k = 0; k < 4; k++)
        if (!right(&acl, address[k], 32) || !right(&acl, address[k], 128))
            return 77;
    return 0;
}
