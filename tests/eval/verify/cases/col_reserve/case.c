#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct column {
    int32_t *vals;
    uint8_t *nulls;
    size_t count, cap;
};

static unsigned int calls, failing; /* bit k of failing: the k-th call finds no memory */

/* realloc that may fail and that fills new memory with ones, as memory used before could be. */
static void *test_realloc(void *old, size_t old_size, size_t size)
{
    if (failing >> calls++ & 1)
        return NULL;
    uint8_t *p = malloc(size);
    if (p == NULL)
        exit(2);
    memset(p, 0xFF, size);
    memcpy(p, old, old_size < size ? old_size : size);
    free(old);
    return p;
}

static size_t vals_size, nulls_size;
static const void *vals_block;

static void *tracked(void *old, size_t size)
{
    const int is_vals = old == vals_block;
    void *p = test_realloc(old, is_vals ? vals_size : nulls_size, size);
    if (p != NULL && is_vals) {
        vals_block = p;
        vals_size = size;
    } else if (p != NULL) {
        nulls_size = size;
    }
    return p;
}

#define realloc tracked

//@FUNCTION@

#undef realloc

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static int is_null(size_t row)
{
    return row * 7 % 5 < 3;
}

static int sound(const struct column *c)
{
    for (size_t i = 0; i < (c->cap + 7) / 8 * 8; i++)
        if ((c->nulls[i / 8] >> i % 8 & 1) != (i < c->count && is_null(i)))
            return 0;
    for (size_t i = 0; i < c->cap; i++)
        if (i < c->count && c->vals[i] != (int32_t)i)
            return 0;
    return 1;
}

static int right(size_t cap, size_t count, size_t want, unsigned int fail)
{
    struct column c = {malloc(cap * sizeof(int32_t)), calloc((cap + 7) / 8, 1), count, cap};
    if (c.vals == NULL || c.nulls == NULL)
        exit(2);
    for (size_t i = 0; i < count; i++) {
        c.vals[i] = (int32_t)i;
        c.nulls[i / 8] |= (uint8_t)(is_null(i) << i % 8);
    }
    vals_block = c.vals;
    vals_size = cap * sizeof(int32_t);
    nulls_size = (cap + 7) / 8;
    calls = 0;
    failing = fail;
    const int got = col_reserve(&c, want);
    const int fails = want > cap && fail != 0;
    int same = got == -fails && sound(&c) && (fails ? c.cap == cap : c.cap >= want);
    c.vals[c.cap - 1] = 1; /* the room is really there */
    free(c.vals);
    free(c.nulls);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 2) {
            const size_t cap = 1 + rnd() % 90, count = rnd() % (cap + 1);
            if (!right(cap, rnd() % 2 ? cap : count, rnd() % 150, rnd() % 4 ? 0 : rnd() % 4))
                return 77;
        }
        return 0;
    }
    return right(8, 8, 9, 0) && right(16, 16, 80, 0) && right(12, 12, 12, 0) && right(12, 12, 13, 0) && right(13, 13, 17, 0) ? 0 : 77;
}
