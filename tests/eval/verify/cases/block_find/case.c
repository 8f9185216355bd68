#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

struct text {
    uint8_t byte[8];
    size_t n;
};

static int order(const void *a, const void *b)
{
    const struct text *x = a, *y = b;
    const int c = memcmp(x->byte, y->byte, x->n < y->n ? x->n : y->n);
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

/* Copies both inputs to blocks of their exact size, so that the sanitizer sees every read outside of them. */
static int find(const uint8_t *block, size_t n, const struct text *t)
{
    uint8_t *p = malloc(n ? n : 1), *q = malloc(t->n ? t->n : 1);
    if (p == NULL || q == NULL)
        exit(2);
    memcpy(p, block, n);
    memcpy(q, t->byte, t->n);
    const int got = n ? block_find(p, p + n, q, t->n) : block_find(p + 1, p + 1, q, t->n);
    free(p);
    free(q);
    return got;
}

static size_t encode(const struct text *list, size_t n, uint8_t *out)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t shared = 0;
        while (i > 0 && shared < list[i].n && shared < list[i - 1].n && list[i].byte[shared] == list[i - 1].byte[shared])
            shared++;
        out[at++] = (uint8_t)shared;
        out[at++] = (uint8_t)(list[i].n - shared);
        memcpy(out + at, list[i].byte + shared, list[i].n - shared);
        at += list[i].n - shared;
    }
    return at;
}

static int right(const struct text *list, size_t n, const struct text *t)
{
    uint8_t block[256];
    int want = -1;
    for (size_t i = 0; i < n; i++)
        if (order(&list[i], t) == 0)
            want = (int)i;
    return find(block, encode(list, n, block), t) == want;
}

static struct text random_text(void)
{
    static const uint8_t letter[4] = {0, 1, 0x61, 0xF0};
    struct text t = {{0}, rnd() % 6};
    for (size_t i = 0; i < t.n; i++)
        t.byte[i] = letter[rnd() % 4];
    return t;
}

int main(int argc, char **argv)
{
    struct text list[16];
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 4) {
            size_t n = 0;
            for (size_t want = rnd() % 16; n < want; n++)
                list[n] = random_text();
            qsort(list, n, sizeof *list, order);
            size_t kept = 0;
            for (size_t k = 0; k < n; k++)
                if (k == 0 || order(&list[kept - 1], &list[k]) != 0)
                    list[kept++] = list[k];
            const struct text t = kept > 0 && rnd() % 2 ? list[rnd() % kept] : random_text();
            if (!right(list, kept, &t))
                return 77;
            /* A damaged block: any result, no access outside. */
            uint8_t block[256];
            size_t size = encode(list, kept, block);
            for (int k = 0; k < 2 && size > 0; k++)
                block[rnd() % size] = (uint8_t)(rnd() % (rnd() % 2 ? 8 : 256));
            const int got = find(block, size - rnd() % (size + 1) * (rnd() % 2), &t);
            if (got < -2 || got >= 128)
                return 77;
        }
        return 0;
    }
    const struct text some[] = {{"ab", 2}, {"abc", 3}, {"abd", 3}, {"b", 1}}, late = {"bz", 2};
    for (size_t k = 0; k < 4; k++)
        if (!right(some, 4, &some[k]))
            return 77;
    return right(some, 4, &late) ? 0 : 77;
}
