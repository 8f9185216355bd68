#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct table {
    uint32_t *key, *val;
    uint32_t mask, n;
};

static uint32_t spread; /* few or many different homes */

static uint32_t home(uint32_t k)
{
    return k % 64 * 0x9E3779B1u % spread + 0xFFFFFFFAu;
}

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* The place of the key, or of the unused place where the search for it ends. */
static uint32_t find(const struct table *t, uint32_t k)
{
    uint32_t at = home(k) & t->mask;
    while (t->key[at] != 0 && t->key[at] != k)
        at = (at + 1) & t->mask;
    return at;
}

/* Adds and removes at random; `val` of every key present is kept in `truth` (0: not present). */
static int right(uint32_t size, uint32_t keys, int steps)
{
    uint32_t truth[65] = {0};
    struct table t = {calloc(size, sizeof(uint32_t)), calloc(size, sizeof(uint32_t)), size - 1, 0};
    if (t.key == NULL || t.val == NULL)
        exit(2);
    int same = 1;
    while (same && steps-- > 0) {
        const uint32_t k = 1 + rnd() % keys;
        if (rnd() % 2 && t.n + 1 < size && truth[k] == 0) {
            const uint32_t at = find(&t, k);
            t.key[at] = k;
            t.val[at] = truth[k] = 1 + rnd();
            t.n++;
        } else {
            same = table_remove(&t, k) == (truth[k] != 0);
            truth[k] = 0;
        }
        uint32_t n = 0, used = 0;
        for (uint32_t j = 1; j <= keys; j++) {
            const uint32_t at = find(&t, j);
            n += truth[j] != 0;
            same = same && (truth[j] ? t.key[at] == j && t.val[at] == truth[j] : t.key[at] == 0);
        }
        for (uint32_t j = 0; j < size; j++)
            used += t.key[j] != 0;
        same = same && t.n == n && used == n;
    }
    free(t.key);
    free(t.val);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 80) {
            spread = 1 + rnd() % (rnd() % 2 ? 4 : 64);
            const uint32_t size = 4u << rnd() % 4;
            if (!right(size, 1 + rnd() % (size + 4), 80))
                return 77;
        }
        return 0;
    }
    for (spread = 1; spread < 20; spread++)
        if (!right(8, 12, 100) || !right(16, 20, 100))
            return 77;
    return 0;
}
