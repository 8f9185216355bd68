#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sync {
    unsigned int state;
};

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static const uint8_t word[12] = {0x3C, 0xC3, 0x3C, 0x3C, 0xC3, 0x3C, 0xC3, 0x3C, 0x3C, 0xC3, 0x3C, 0x99};

/* Scans the stream in pieces and compares every result with a search by memcmp. */
static int right(const uint8_t *p, size_t n)
{
    struct sync s = {0};
    size_t begin = 0, at = 0; /* where the search began, and how far it is */
    while (at < n) {
        size_t piece = 1 + rnd() % 40;
        if (piece > n - at)
            piece = n - at;
        size_t want = 0;
        for (size_t e = at + 1; e <= at + piece && want == 0; e++)
            if (e - begin >= sizeof word && memcmp(p + e - sizeof word, word, sizeof word) == 0)
                want = e - at;
        if (sync_scan(&s, p + at, piece) != want)
            return 0;
        at += want ? want : piece;
        if (want)
            begin = at;
    }
    return 1;
}

int main(int argc, char **argv)
{
    static const uint8_t letter[3] = {0x3C, 0xC3, 0x99};
    uint8_t data[120];
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            /* Stretches of the word itself, with few stray bytes, so that every fallback is met. */
            size_t n = 0;
            while (n + sizeof word < sizeof data) {
                const size_t from = rnd() % sizeof word, length = 1 + rnd() % (sizeof word - from);
                memcpy(data + n, word + (rnd() % 2 ? 0 : from), length);
                n += length;
                if (rnd() % 4 == 0)
                    data[n++] = rnd() % 8 ? letter[rnd() % 3] : (uint8_t)rnd();
            }
            if (!right(data, n))
                return 77;
        }
        return 0;
    }
    static const char *const text[] = {"ABAABABAABAC", "ABAABABAABABAABABAABAC", "ABAABABAABABAABAC", "ABAABABAABAABAABABAABAC"};
    for (size_t t = 0; t < sizeof text / sizeof *text; t++) {
        const size_t n = strlen(text[t]);
        for (size_t i = 0; i < n; i++)
            data[i] = letter[text[t][i] - 'A'];
        if (!right(data, n))
            return 77;
    }
    return 0;
}
