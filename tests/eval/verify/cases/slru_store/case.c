#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ent {
    struct ent *prev, *next;
    void *value;
    size_t size;
    int hot;
};
struct dll {
    struct ent *head, *tail;
    size_t bytes;
};
struct slru {
    struct dll cold, hot;
    size_t cold_max, hot_max, count;
};

static void dll_unlink(struct dll *l, struct ent *e)
{
    if (e->prev != NULL)
        e->prev->next = e->next;
    else
        l->head = e->next;
    if (e->next != NULL)
        e->next->prev = e->prev;
    else
        l->tail = e->prev;
    e->prev = e->next = NULL;
    l->bytes -= e->size;
}

static void dll_push(struct dll *l, struct ent *e)
{
    e->prev = NULL;
    e->next = l->head;
    if (l->head != NULL)
        l->head->prev = e;
    else
        l->tail = e;
    l->head = e;
    l->bytes += e->size;
}

static void drop(struct slru *c, struct ent *e)
{
    c->count--;
    free(e->value);
    free(e);
}

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static struct ent *add(struct slru *c, size_t size)
{
    struct ent *e = calloc(1, sizeof *e);
    if (e == NULL || (e->value = malloc(size)) == NULL)
        exit(2);
    e->size = size;
    dll_push(&c->cold, e);
    c->count++;
    return e;
}

/* Links, flags and sums of one list; returns the number of entries, or exits 77. */
static size_t counted(const struct dll *l, int hot, size_t max)
{
    size_t n = 0, sum = 0;
    const struct ent *last = NULL;
    for (const struct ent *e = l->head; e != NULL; last = e, e = e->next) {
        if (e->prev != last || e->hot != hot)
            exit(77);
        memset(e->value, 1, e->size);
        sum += e->size;
        n++;
    }
    if (l->tail != last || l->bytes != sum || sum > max)
        exit(77);
    return n;
}

static void consistent(const struct slru *c)
{
    if (counted(&c->cold, 0, c->cold_max) + counted(&c->hot, 1, c->hot_max) != c->count)
        exit(77);
}

static void store(struct slru *c, struct ent *e, size_t size)
{
    void *value = malloc(size);
    if (value == NULL)
        exit(2);
    slru_store(c, e, value, size);
    consistent(c);
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 20) {
            struct slru c = {{NULL, NULL, 0}, {NULL, NULL, 0}, 200 + rnd() % 200, rnd() % 200, 0};
            for (int k = 0; k < 20; k++) {
                if (c.count < 6 && c.cold.bytes + 30 <= c.cold_max)
                    add(&c, 1 + rnd() % 30);
                struct dll *l = rnd() % 2 && c.hot.head != NULL ? &c.hot : &c.cold;
                struct ent *e = rnd() % 2 ? l->head : l->tail;
                if (e != NULL && e->next != NULL && rnd() % 2)
                    e = e->next;
                if (e != NULL)
                    store(&c, e, 1 + rnd() % (rnd() % 8 ? 60 : 500));
            }
            c.cold_max = c.hot_max = 0;
            if (c.count > 0)
                store(&c, c.cold.head != NULL ? c.cold.head : c.hot.head, 1);
            if (c.count != 0)
                return 77;
        }
        return 0;
    }
    struct slru c = {{NULL, NULL, 0}, {NULL, NULL, 0}, 100, 100, 0};
    struct ent *e = add(&c, 10), *f = add(&c, 20);
    store(&c, e, 10); /* the same size is harmless */
    store(&c, f, 15);
    store(&c, e, 40);
    return c.hot.bytes == 55 && c.cold.bytes == 0 && c.hot.head == e ? 0 : 77;
}
