#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE UINT32_MAX
#define MOST 90

struct timer {
    uint32_t pos, due;
};
struct timers {
    struct timer **a;
    uint32_t n;
};

static int before(const struct timer *x, const struct timer *y)
{
    return (int32_t)(x->due - y->due) < 0;
}

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* A random heap of n timers; every timer is then taken out in random order, with all invariants checked after each. */
static int right(uint32_t n, uint32_t spread, uint32_t base)
{
    struct timer timer[MOST];
    int in_heap[MOST];
    struct timers h = {malloc(n * sizeof(struct timer *)), n};
    if (h.a == NULL)
        exit(2);
    for (uint32_t i = 0; i < n; i++) {
        /* A timer's due time is its parent's and some more, which reaches shapes that adding one by one does not. */
        timer[i].due = (i > 0 ? timer[(i - 1) / 4].due : base) + rnd() % spread * (rnd() % 3 == 0 ? 10 : 1);
        timer[i].pos = i;
        h.a[i] = &timer[i];
        in_heap[i] = 1;
    }
    int same = 1;
    for (uint32_t left = n; same && left-- > 0;) {
        uint32_t k = rnd() % n;
        while (!in_heap[k])
            k = (k + 1) % n;
        timers_cancel(&h, &timer[k]);
        in_heap[k] = 0;
        same = h.n == left && timer[k].pos == IDLE;
        for (uint32_t i = 0; same && i < n; i++)
            if (in_heap[i])
                same = timer[i].pos < h.n && h.a[timer[i].pos] == &timer[i];
        for (uint32_t i = 1; same && i < h.n; i++)
            same = !before(h.a[i], h.a[(i - 1) / 4]);
    }
    free(h.a);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 40)
            if (!right(1 + rnd() % MOST, 1 + rnd() % (rnd() % 2 ? 3 : 1000), rnd() * 2))
                return 77;
        return 0;
    }
    for (uint32_t n = 1; n <= MOST; n++)
        if (!right(n, 5, UINT32_MAX - 20) || !right(n, 1000, 0))
            return 77;
    return 0;
}
