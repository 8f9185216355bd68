#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct replay {
    uint64_t top, map[4];
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

struct past {
    uint64_t seq[400];
    size_t n;
};

/* One packet, judged by the list of all numbers accepted before. */
static int right(struct replay *r, struct past *past, uint64_t seq)
{
    const uint64_t top = r->top;
    int known = 0;
    for (size_t i = 0; i < past->n; i++)
        known |= past->seq[i] == seq;
    const int got = replay_accept(r, seq);
    if (got)
        past->seq[past->n++] = seq;
    if (r->top != (seq > top ? seq : top))
        return 0;
    if (known)
        return got == 0;
    return got == 1 || (seq < top && top - seq > 128);
}

int main(int argc, char **argv)
{
    static struct past past;
    struct replay r;
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 100) {
            memset(&r, 0, sizeof r);
            past.n = 0;
            const uint32_t wide = 1 + rnd() % 400;
            for (int k = 0; k < 200; k++) {
                uint64_t seq = r.top + 1 + rnd() % (rnd() % 8 ? 20 : wide);
                if (rnd() % 2 && r.top > 0)
                    seq = r.top - rnd() % (r.top < 300 ? r.top : 300);
                if (rnd() % 3 == 0 && past.n > 0)
                    seq = past.seq[rnd() % past.n];
                if (rnd() % 64 == 0)
                    seq = r.top + 64 * (1 + rnd() % 20);
                if (!right(&r, &past, seq))
                    return 77;
            }
        }
        return 0;
    }
    static const uint64_t packets[] = {1, 2, 2, 5, 3, 100, 70, 100, 321, 256, 193, 193, 100, 356};
    memset(&r, 0, sizeof r);
    for (size_t i = 0; i < sizeof packets / sizeof *packets; i++)
        if (!right(&r, &past, packets[i]))
            return 77;
    return 0;
}
