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

/* The form by counting characters, the value in 128 bits, cut off when it is surely too large. */
static int wanted(const char *s, size_t n, int64_t *out)
{
    __extension__ typedef __int128 wide;
    size_t i = 0, whole = 0, part = 0;
    wide v = 0;
    const wide enough = (wide)1 << 100;
    if (n > 0 && s[0] == '-')
        i++;
    const size_t begin = i;
    for (; i < n && s[i] >= '0' && s[i] <= '9'; i++, whole++)
        v = v > enough ? v : 10 * v + (s[i] - '0');
    if (i < n && s[i] == '.') {
        for (i++; i < n && s[i] >= '0' && s[i] <= '9'; i++, part++)
            v = v > enough ? v : 10 * v + (s[i] - '0');
        if (part == 0 || part > 2)
            return -1;
    }
    if (i != n || whole == 0)
        return -1;
    for (; part < 2; part++)
        v *= 10;
    if (begin == 1)
        v = -v;
    if (v < INT64_MIN || v > INT64_MAX)
        return -1;
    *out = (int64_t)v;
    return 0;
}

static int right(const char *s, size_t n)
{
    char *exact = malloc(n ? n : 1);
    if (exact == NULL)
        exit(2);
    memcpy(exact, s, n);
    int64_t got = 4711, want = 4711;
    const int a = parse_cents(n ? exact : exact + 1, n, &got), b = wanted(s, n, &want);
    free(exact);
    return a == b && got == want;
}

int main(int argc, char **argv)
{
    char text[64];
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            size_t n = 0;
            if (rnd() % 2) { /* near the limits of the range, or near a tenth of them */
                static const char *const near[] = {"922337203685477580", "92233720368547758", "9223372036854775807", "00092233720368547758"};
                n = (size_t)sprintf(text, "%s%s", rnd() % 2 ? "-" : "", near[rnd() % 4]);
                for (uint32_t k = rnd() % 3; k > 0; k--)
                    text[n - 1 - rnd() % 2] = (char)('0' + rnd() % 10);
                if (rnd() % 4) {
                    text[n++] = '.';
                    for (uint32_t k = rnd() % 4; k > 0; k--)
                        text[n++] = (char)('0' + rnd() % 10);
                }
            } else {
                for (uint32_t k = rnd() % 8; k > 0; k--)
                    text[n++] = "0123456789.-"[rnd() % 12];
            }
            if (n > 0 && rnd() % 8 == 0)
                text[rnd() % n] = (char)rnd();
            if (!right(text, n))
                return 77;
        }
        return 0;
    }
    static const char *const some[] = {"", "-", "0", "-0", "17", "-3.5", "0.07", "0.070", "5.", ".5", "1.2.3", "--1", "1-", "007.1",
                                       "92233720368547758.07", "92233720368547758.08", "-92233720368547758.08", "-92233720368547758.09",
                                       "92233720368547758", "92233720368547759", "-92233720368547758", "-92233720368547759",
                                       "9223372036854775808", "-9223372036854775808", "922337203685477580.7", "-922337203685477580.8",
                                       "-92233720368547758.0", "00000000000000000000000000000000000001", "-.", "\xFF"};
    for (size_t k = 0; k < sizeof some / sizeof *some; k++)
        if (!right(some[k], strlen(some[k])))
            return 77;
    return 0;
}
