"""C written for tests: a text as literals in any of the ways that C has for it, and tables of questions around them."""

from __future__ import annotations

import random
import re

NAMED = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 39: "'", 63: "?", 92: "\\"}
GAPS = [" ", "\n", "\n    ", "", " /* and */ ", ' /* a "quote", a } and a // */', " // to the end, \" too\n", "\t\r\n",
        " // goes on \\\n here, too\n"]  # fmt: skip


def literals(data: bytes, rng: random.Random, splices: bool = True) -> str:
    """``data`` as one or more string literals side by side; every byte, or character, in a way that ``rng`` draws."""
    out = [rng.choice(['"', '"', '"', 'u8"'])]
    last = ""  # the escape before, whose digits would go on
    for piece in _pieces(data, rng):
        written = _written(piece, rng)
        goes_on = (last == "x" and re.match(r"[0-9A-Fa-f]", written)) or (last == "o" and re.match(r"[0-7]", written))
        if goes_on or rng.random() < 0.04:
            out.append('"' + rng.choice(GAPS) + '"')
        if splices and rng.random() < 0.05:
            at = rng.randrange(len(written) + 1)
            written_spliced = written[:at] + rng.choice(["\\\n", "\\\r\n"]) + written[at:]
        else:
            written_spliced = written
        out.append(written_spliced)
        last = "x" if written.startswith("\\x") else "o" if re.fullmatch(r"\\[0-7]{1,2}", written) else ""
    return "".join([*out, '"'])


def _pieces(data: bytes, rng: random.Random) -> list[bytes]:
    """Characters where the bytes are UTF-8 and ``rng`` wants them whole, else bytes."""
    pieces, at = [], 0
    while at < len(data):
        match = re.match(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}", data[at:])
        whole = match[0] if match and rng.random() < 0.8 else data[at : at + 1]
        try:
            whole.decode()
        except UnicodeDecodeError:
            whole = data[at : at + 1]
        pieces.append(whole)
        at += len(whole)
    return pieces


def _written(piece: bytes, rng: random.Random) -> str:
    """One character or byte. Bytes of a broken character only as escapes; ``\\u`` not below 0xA0, where C has none."""
    try:
        char = piece.decode()
    except UnicodeDecodeError:
        return rng.choice([f"\\{piece[0]:03o}", f"\\x{piece[0]:02x}"])
    ways = []
    if len(piece) > 1:
        ways += [char, char]
        if ord(char) >= 0xA0:
            ways += [f"\\U{ord(char):08x}"] + ([f"\\u{ord(char):04X}"] if ord(char) < 0x10000 else [])
        return rng.choice(ways)
    code = piece[0]
    if code in NAMED:
        ways += [f"\\{NAMED[code]}"] * 4
    if 32 <= code < 127 and char not in '"\\':
        ways += [char] * 8
    ways += [f"\\{code:o}", f"\\{code:03o}", f"\\x{code:x}", f"\\x{code:04X}"]
    return rng.choice(ways)


HEAD = r"""/* A table, after things that are none: "quotes", { braces and */
#include <stddef.h>
#define MANY 10 /* choices */
#define SCIENCE "GPQA" " " /* in
two lines */ "Diamond"
#define NONE NOTHING
#define NOTHING NULL
// a comment that goes on \
   "here, and closes nothing
typedef struct {
    const char *source, *id;
    const char *domain;
    char title[80];
    const char *question;
    const char *choice[MANY];
    const char *answer;
    int weight;
} eval_case;
static const char *letters[] = { "A", "B", };
static const int sizes[] = { 1, 0x2, 3 };
static int quote(int c) { return c == '"' ? '\'' : c == '{' ? '\\' : '}'; }
#if 0
  don't read this: "it is not closed
  static const eval_case cases[] = { { "no" } };
#elif 1
"""

FIELDS = ("source", "id", "domain", "title", "question", "choice", "answer")


def record(values: dict[str, str | list[str]], rng: random.Random) -> str:
    """One struct in one of the forms of initialisers."""

    def text(value: str) -> str:
        made = literals(value.encode(), rng)
        return rng.choice([made, made, made, f"({made})"])

    choices = values["choice"]
    assert isinstance(choices, list)
    held = {name: text(str(values[name])) for name in FIELDS if name != "choice"}
    held["title"] = literals(str(values["title"]).encode(), rng)  # an array cannot have parentheses
    if values["source"] == "GPQA Diamond":
        held["source"] = "SCIENCE"
    listed = ", ".join(map(text, choices))
    form = rng.choice(["named", "mixed", "places", "plain"])
    if form == "plain":  # in the order of the fields; choices with their braces, or filled up with NULL
        ten = [*map(text, choices), *rng.choices(["NULL", "NONE", "0", "(void *)0"], k=10 - len(choices))]
        held["choice"] = rng.choice([f"{{ {listed} }}" if choices else "{ NULL }", ", ".join(ten)])
        return "{" + ", ".join([*(held[name] for name in FIELDS), rng.choice(["7", "7,", "1 + 2"])]) + "}"
    if form == "places" and choices:
        order = list(range(len(choices)))
        rng.shuffle(order)
        held["choice"] = "{ " + ", ".join(f"[{i}] = {text(choices[i])}" for i in order) + " }"
    else:
        held["choice"] = f"{{ {listed}{rng.choice([',', ', NULL', ''])} }}" if choices else "{ 0 }"
    parts = [f".{name} = {held[name]}" for name in FIELDS if name != "choice" or choices or rng.random() < 0.5]
    if form == "mixed":
        parts = [part for part in parts if not part.startswith(".choice")]
        parts += [f".choice[{i}] = {text(choice)}" for i, choice in enumerate(choices)]
        parts = parts if rng.random() < 0.5 else [*parts, ".weight = 3"]
    rng.shuffle(parts)
    return "{ " + ",\n  ".join(parts) + rng.choice([" }", ", }"])


def table(values: list[dict[str, str | list[str]]], rng: random.Random) -> str:
    """A whole file, which also compiles."""
    body = ",\n".join(record(one, rng) + rng.choice(GAPS) for one in values)
    return HEAD + "static const eval_case cases[] = {\n" + body + ",\n    { NULL }\n};\n#else\n#error no\n#endif\n"


MAIN = r"""
#include <stdio.h>
static void put(const char *s) {
    if (!s) printf(" -");
    else for (printf(" +"); *s; s++) printf("%02x", (unsigned char)*s);
}
int main(void) {
    for (size_t i = 0; i + 1 < sizeof cases / sizeof *cases; i++) {
        const eval_case *c = &cases[i];
        put(c->source); put(c->id); put(c->domain); put(c->title); put(c->question); put(c->answer);
        for (int k = 0; k < MANY; k++) put(c->choice[k]);
        printf("\n");
    }
    return quote(letters[0][0]) + sizes[0] - sizes[0] == 0;
}
"""
