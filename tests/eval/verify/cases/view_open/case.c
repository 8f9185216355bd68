#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct blob {
    int refs, pins;
};
struct store {
    struct blob *blob;
};
struct map {
    int dummy;
};
struct view {
    struct blob *b;
    struct map *m;
};

static unsigned int failing; /* bit k set: the k-th of the fallible functions fails */
static int maps, views;

static struct blob *store_get(struct store *st, const char *name)
{
    if (failing & 1 || *name == '\0')
        return NULL;
    st->blob->refs++;
    return st->blob;
}

static void blob_put(struct blob *b)
{
    if (b->refs <= 0)
        exit(77);
    if (--b->refs == 0)
        free(b);
}

static int blob_verify(struct blob *b)
{
    return failing & 2 && b->refs > 0 ? -1 : 0;
}

static int blob_pin(struct blob *b)
{
    if (failing & 4)
        return -1;
    b->pins++;
    return 0;
}

static void blob_unpin(struct blob *b)
{
    if (b->pins <= 0)
        exit(77);
    b->pins--;
}

static struct map *map_make(struct blob *b)
{
    struct map *m = failing & 8 || b->pins <= 0 ? NULL : calloc(1, sizeof *m);
    maps += m != NULL;
    return m;
}

static void map_free(struct map *m)
{
    maps--;
    free(m);
}

static struct view *view_new(struct blob *b, struct map *m)
{
    struct view *v = failing & 16 ? NULL : calloc(1, sizeof *v);
    if (v != NULL) {
        v->b = b;
        v->m = m;
        b->refs++;
        views++;
    }
    return v;
}

static int view_index(struct view *v)
{
    return failing & 32 && v->b->pins > 0 ? -1 : 0;
}

static void view_put(struct view *v)
{
    map_free(v->m);
    blob_unpin(v->b);
    blob_put(v->b);
    views--;
    free(v);
}

//@FUNCTION@

/* The store has one reference; `others` more references and pins belong to somebody else. */
static int right(unsigned int fail, int strict, int others)
{
    struct store st = {calloc(1, sizeof(struct blob))};
    if (st.blob == NULL)
        exit(2);
    st.blob->refs = 1 + others;
    st.blob->pins = others;
    failing = fail;
    struct view *v = view_open(&st, "x", strict);
    const int open = v != NULL, fails = (fail & (strict ? 63 : 61)) != 0;
    if (open == fails || st.blob->refs != 1 + others + open || st.blob->pins != others + open || maps != open || views != open)
        return 0;
    if (open)
        view_put(v);
    if (st.blob->refs != 1 + others || st.blob->pins != others || maps != 0 || views != 0)
        return 0;
    free(st.blob);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        uint64_t state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            if (!right(state >> 40 & 63, state >> 50 & 1, state >> 55 & 3))
                return 77;
        }
        return 0;
    }
    for (unsigned int fail = 0; fail < 64; fail++)
        for (int k = 0; k < 4; k++)
            if (!right(fail, k & 1, k >> 1))
                return 77;
    return 0;
}
