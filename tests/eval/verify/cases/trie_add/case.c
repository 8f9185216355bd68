#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tnode {
    uint32_t child, next, kids;
    uint8_t byte, ends;
};
struct trie {
    struct tnode *node;
    uint32_t n, cap, limit;
};

/* Moves the array whenever it is full, and always to a new place. */
static uint32_t trie_new(struct trie *t)
{
    if (t->n == t->limit)
        return 0;
    if (t->n == t->cap) {
        const uint32_t cap = t->cap + t->cap / 2 + 1;
        struct tnode *node = calloc(cap, sizeof *node);
        if (node == NULL)
            exit(2);
        memcpy(node, t->node, t->n * sizeof *node);
        free(t->node);
        t->node = node;
        t->cap = cap;
    }
    return t->n++;
}

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void start(struct trie *t, uint32_t limit)
{
    t->node = calloc(1, sizeof *t->node);
    if (t->node == NULL)
        exit(2);
    t->n = t->cap = 1;
    t->limit = limit;
}

/* Sorted lists, right counts; returns the number of strings. */
static uint32_t strings(const struct trie *t, uint32_t at)
{
    uint32_t total = t->node[at].ends, kids = 0;
    for (uint32_t c = t->node[at].child, last = 0; c != 0; last = c, c = t->node[c].next) {
        if (last != 0 && t->node[last].byte >= t->node[c].byte)
            exit(77);
        kids++;
        total += strings(t, c);
    }
    if (kids != t->node[at].kids)
        exit(77);
    return total;
}

int main(int argc, char **argv)
{
    struct trie t;
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 12) {
            uint8_t key[12][5];
            size_t length[12];
            uint32_t distinct = 0;
            start(&t, rnd() % 4 ? 1000 : 1 + rnd() % 12);
            for (int k = 0; k < 12; k++) {
                length[k] = rnd() % 5;
                for (size_t j = 0; j < length[k]; j++)
                    key[k][j] = (uint8_t)(rnd() % 3 * 100);
                int known = 0;
                for (int o = 0; o < k; o++)
                    known |= length[o] == length[k] && memcmp(key[o], key[k], length[k]) == 0;
                const int got = trie_add(&t, key[k], length[k]);
                if (got < 0) {
                    if (t.n != t.limit)
                        return 77;
                    length[k] = 5; /* was not added: equal to no later key */
                } else if (got != !known) {
                    return 77;
                }
                distinct += got == 1;
                if (strings(&t, 0) != distinct)
                    return 77;
            }
            free(t.node);
        }
        return 0;
    }
    start(&t, 1000);
    const char *const text[] = {"b", "a", "ab", "c", "abc", "abd", "aa", ""};
    for (size_t k = 0; k < sizeof text / sizeof *text; k++)
        if (trie_add(&t, (const uint8_t *)text[k], strlen(text[k])) != 1)
            return 77;
    const uint32_t total = strings(&t, 0);
    free(t.node);
    return total == 8 ? 0 : 77;
}
