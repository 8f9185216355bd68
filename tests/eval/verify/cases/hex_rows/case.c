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

/* The text built another way: into a large buffer, row by row. */
static int right(const uint8_t *p, size_t n)
{
    static char want[8192];
    size_t at = 0;
    for (size_t row = 0; row < n; row += 12) {
        for (size_t k = row; k < row + 12 && k < n; k++)
            at += (size_t)sprintf(want + at, "%s%02x", k == row + 5 || k == row + 10 ? " " : "", p[k]);
        at += (size_t)sprintf(want + at, "\n");
    }
    want[at] = '\0';
    char *got = hex_rows(p, n);
    const int same = got != NULL && strcmp(got, want) == 0;
    free(got);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            uint8_t data[80];
            const size_t n = rnd() % (sizeof data + 1);
            for (size_t k = 0; k < n; k++)
                data[k] = (uint8_t)rnd();
            if (!right(data, n))
                return 77;
        }
        return 0;
    }
    const uint8_t data[80] = {0xa5, 0x07, 0xff};
    for (size_t n = 0; n <= sizeof data; n++)
        if (!right(data, n))
            return 77;
    return 0;
}
