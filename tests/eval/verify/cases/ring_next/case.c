#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ring {
    uint8_t buf[4096];
    uint16_t rd, wr;
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Sets up `used` bytes from counter `rd` on, fetches once, and compares with what the straight bytes say. */
static int right(uint16_t rd, uint32_t used, uint32_t len, uint16_t cap)
{
    struct ring *r = malloc(sizeof *r);
    uint8_t *out = malloc(cap ? cap : 1), straight[4096];
    if (r == NULL || out == NULL)
        exit(2);
    for (uint32_t k = 0; k < 4096; k++) {
        straight[k] = (uint8_t)(k * 37 + k / 256);
        if (k < 2)
            straight[k] = (uint8_t)(len >> 8 * k);
        r->buf[(rd + k) % 4096] = straight[k];
    }
    r->rd = rd;
    r->wr = (uint16_t)(rd + used);
    const int got = ring_next(r, out, cap);
    int want = (int)len;
    if (used < 2)
        want = 0;
    else if (len == 0 || len > cap || len > 4094)
        want = -1;
    else if (used < len + 2)
        want = 0;
    int same = got == want && r->wr == (uint16_t)(rd + used);
    if (want >= 0)
        same = same && r->rd == (uint16_t)(rd + (want > 0 ? want + 2 : 0)) && memcmp(out, straight + 2, (size_t)want) == 0;
    free(r);
    free(out);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 4) {
            const uint32_t used = rnd() % 4 ? rnd() % 40 : rnd() % 4097;
            uint32_t len = rnd() % 2 ? (used + 4 - rnd() % 6) % 65536 : rnd() % 5000;
            if (rnd() % 16 == 0)
                len = rnd() % 65536;
            const uint16_t rd = (uint16_t)(rnd() % 2 ? rnd() : 65535 - rnd() % 5000);
            if (!right(rd, used, len, (uint16_t)(rnd() % 2 ? 4094 : rnd() % 5000)))
                return 77;
        }
        return 0;
    }
    const int plain = right(0, 12, 10, 100) && right(4090, 14, 10, 100) && right(100, 11, 10, 100);
    return plain && right(65535, 12, 10, 100) && right(65520, 30, 10, 100) ? 0 : 77;
}
