#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct fold {
    uint32_t a, b;
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* The definition: reduce after every word. */
static int right(struct fold f, const uint16_t *w, size_t n)
{
    struct fold g = f;
    for (size_t i = 0; i < n; i++) {
        g.a = (g.a + w[i] % 4096u) % 4093u;
        g.b = (g.b + g.a) % 4093u;
    }
    fold_update(&f, w, n);
    return f.a == g.a && f.b == g.b;
}

int main(int argc, char **argv)
{
    static uint16_t data[4096];
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 10) { /* inputs are long, so fewer of them */
            const size_t n = rnd() % (sizeof data / sizeof *data + 1);
            const uint16_t base = rnd() % 2 ? 0x0FFF : (uint16_t)rnd();
            for (size_t k = 0; k < n; k++)
                data[k] = base;
            for (size_t k = rnd() % 8; k > 0 && n > 0; k--)
                data[rnd() % n] = (uint16_t)rnd();
            const struct fold f = {rnd() % 2 ? 4092 : rnd() % 4093, rnd() % 2 ? 4092 : rnd() % 4093};
            if (!right(f, data, n))
                return 77;
        }
        return 0;
    }
    memset(data, 0xFF, sizeof data);
    const struct fold zero = {0, 0}, largest = {4092, 4092};
    return right(zero, data, 1000) && right(largest, data, 1446) && right(largest, data, 1447) ? 0 : 77;
}
