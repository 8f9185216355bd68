#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t op_size[256];

//@FUNCTION@

static uint64_t state;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Lists the positions of the instructions, then looks for every target in the list. */
static int wanted(const uint8_t *code, uint32_t n)
{
    static uint32_t at[65537];
    uint32_t count = 0, pc = 0;
    for (; pc < n; pc += op_size[code[pc]]) {
        if (op_size[code[pc]] == 0)
            return 0;
        at[count++] = pc;
    }
    at[count] = n;
    if (pc != n)
        return 0;
    for (uint32_t k = 0; k < count; k++) {
        if (code[at[k]] < 0xE0)
            continue;
        long way = code[at[k] + 1] + 256L * code[at[k] + 2], found = 0;
        if (way >= 32768)
            way -= 65536;
        for (uint32_t j = 0; j <= count; j++)
            found |= (long)at[j] == (long)at[k + 1] + way;
        if (!found)
            return 0;
    }
    return 1;
}

static int right(const uint8_t *code, uint32_t n)
{
    uint8_t *exact = malloc(n ? n : 1), *start = calloc(n + 1, 1);
    if (exact == NULL || start == NULL)
        exit(2);
    memcpy(exact, code, n);
    const int got = code_ok(n ? exact : exact + 1, (uint16_t)n, start);
    free(exact);
    free(start);
    return got == wanted(code, n);
}

int main(int argc, char **argv)
{
    static uint8_t code[65535];
    for (int op = 0; op < 256; op++)
        op_size[op] = (uint8_t)(op < 0x60 ? 1 + op % 5 : op >= 0xE0 && op < 0xF0 ? 3 : 0);
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], NULL, 10);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
            /* Mostly good programs: jumps go to an instruction that is near, in one of two directions. */
            uint32_t n = 0, first = 0, second = 0;
            for (uint32_t k = rnd() % 14; k > 0; k--) {
                const uint8_t op = (uint8_t)(rnd() % 3 ? rnd() % 0x60 : 0xE0 + rnd() % 16);
                const uint32_t size = op_size[op];
                for (uint32_t j = 1; j < size; j++)
                    code[n + j] = (uint8_t)rnd();
                code[n] = op;
                if (op >= 0xE0) {
                    const int way = rnd() % 3 ? (int)(rnd() % 2 ? first : second) - (int)n - 3 : (int)(rnd() % 8);
                    code[n + 1] = (uint8_t)way;
                    code[n + 2] = (uint8_t)((unsigned int)way >> 8);
                }
                second = rnd() % 2 ? n : first;
                first = n + size;
                n += size;
            }
            if (n > 0 && rnd() % 4 == 0)
                code[rnd() % n] = (uint8_t)rnd();
            if (n > 0 && rnd() % 8 == 0)
                n -= 1;
            if (!right(code, n))
                return 77;
        }
        return 0;
    }
    int sound = right(code, 0) && right((const uint8_t[]){0xE0, 0, 0}, 3) && right((const uint8_t[]){0xE0, 1, 0}, 3);
    sound = sound && right((const uint8_t[]){0xE0, 0xFD, 0xFF}, 3) && right((const uint8_t[]){0xE0, 0xFC, 0xFF}, 3);
    sound = sound && right((const uint8_t[]){0, 0xE0}, 2) && right((const uint8_t[]){0x70}, 1) && right((const uint8_t[]){1}, 1);
    code[65532] = 0xE0; /* 65532 times the operation 0, then a jump: as far as it goes, then to the end */
    code[65534] = 0x80;
    sound = sound && right(code, 65535);
    code[65534] = 0;
    return sound && right(code, 65535) ? 0 : 77;
}
