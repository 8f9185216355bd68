#include <stdint.h>
#include <stdlib.h>

struct vfile {
    uint64_t size;
    uint32_t page, span_max;
};
struct window {
    uint64_t base, span;
    uint32_t lead;
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* The description with divisions instead of masks. */
static int right(const struct vfile *f, uint64_t off, uint32_t len)
{
    struct window w = {0, 0, 0};
    const int got = window_for(f, off, len, &w);
    if (len == 0 || off >= f->size || f->size - off < len)
        return got == -1;
    const uint64_t page = f->page, first = off / page, last = (off + len - 1) / page;
    const uint64_t span = (last - first + 1) * page;
    if (span > f->span_max)
        return got == -1;
    return got == 0 && w.base == first * page && w.lead == off % page && w.span == span;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            struct vfile f;
            f.page = 4096u << rnd() % 5;
            f.span_max = f.page + rnd() % (0x7FFFFFFFu - f.page);
            f.size = (((uint64_t)rnd() << 31 | rnd()) & ((UINT64_C(1) << 46) - 1)) >> rnd() % 40;
            uint64_t off = ((uint64_t)rnd() << 31 | rnd()) >> rnd() % 50;
            if (rnd() % 4 != 0 && f.size > 0)
                off %= f.size;
            uint32_t len = (rnd() * 2 + rnd() % 2) >> rnd() % 32;
            if (rnd() % 2)
                off = off / f.page * f.page;
            if (rnd() % 4 == 0)
                len = (uint32_t)(0 - off) & (f.page - 1);
            if (rnd() % 64 == 0)
                off = UINT64_MAX - rnd() % 8;
            if (!right(&f, off, len))
                return 77;
        }
        return 0;
    }
    const struct vfile f = {UINT64_C(1) << 40, 4096, 1u << 30};
    const int low = right(&f, 5000, 10) && right(&f, 4096, 4096) && right(&f, 0, 1);
    return low && right(&f, (UINT64_C(5) << 32) + 5000, 10) && right(&f, (UINT64_C(5) << 32) - 1, 4097) ? 0 : 77;
}
