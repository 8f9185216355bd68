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

/* `done` bytes are there, `room` bytes follow; the buffer has just this size, and what is not yet written is filled with junk. */
static int right(size_t done, size_t room, size_t dist, size_t len, uint8_t junk)
{
    uint8_t *buffer = malloc(done + room ? done + room : 1), *want = malloc(done + len ? done + len : 1);
    if (buffer == NULL || want == NULL)
        exit(2);
    for (size_t i = 0; i < done; i++)
        want[i] = buffer[i] = (uint8_t)(i * 29 + i / 9);
    memset(buffer + done, junk, room);
    const uint8_t *got = copy_match(buffer + done, buffer, buffer + done + room, dist, len);
    int same;
    if (dist == 0 || dist > done || len > room) {
        same = got == NULL;
    } else {
        for (size_t i = done; i < done + len; i++)
            want[i] = want[i - dist];
        same = got == buffer + done + len && memcmp(want, buffer, done + len) == 0;
    }
    free(buffer);
    free(want);
    return same;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i -= 2) {
            const size_t done = rnd() % 40, len = 4 + rnd() % (rnd() % 4 ? 20 : 80);
            const size_t dist = rnd() % 2 ? rnd() % 12 : rnd() % (done + 2);
            const size_t room = rnd() % 2 ? len + rnd() % 12 : rnd() % 120;
            if (!right(done, room, dist, len, (uint8_t)rnd()))
                return 77;
        }
        return 0;
    }
    for (size_t dist = 0; dist < 20; dist++)
        for (size_t len = 4; len < 30; len++)
            for (size_t room = len - 1; room < len + 10; room++)
                if (!right(19, room, dist, len, 0xEE) || !right(dist, room, dist, len, 0xEE))
                    return 77;
    return 0;
}
