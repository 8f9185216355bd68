"""Does any text crash the grader of ds4-eval, and which one takes it longest?

    python -m benchmarks.grading --texts 1000000        a million texts, one core, under an hour
    python -m benchmarks.grading --texts 20000 --seed 7

Texts of up to 20 kB are put together from the corpus of outputs and its pieces, from the words that the grader knows,
from code points of all planes, from one character or one piece many times over, and from runs made against regular
expressions: much that begins what a pattern looks for and never ends it. Each is graded as a random entry's question,
in CPU time of this process. A text above the bar is graded again when all are done, ten times, and the least of these
counts: what takes long every time takes long because of the text. How many these were is told.

Puts out crashes, the share of texts above some times, the slowest texts, and how time grows up to 1 MB; a line of JSON
last. Leaves out whether grades are right, which is the corpus's business.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from ds4ref.cli.common import Progress
from ds4ref.runs.provenance import stamp
from eval.grading import corpus, grade, plain, words
from eval.packs import Question

BAR_MS = 10.0
LONGEST = 20_000
"""Bytes of a text in UTF-8."""
SHARES_MS = (1, 2, 3, 5, 10)
KEPT, SLOWEST = 50, 5
"""Texts that are graded again, and those that are shown."""
GROWTH = (20_000, 100_000, 1_000_000)

Draw = Callable[[random.Random, int], str]
"""A text of about so many characters."""

HEADS = (
    *("answer", "Answer: ", "the answer is ", "\\boxed{", "\\boxed", "\\frac{", "{", "}", "}{", "\\text{", "~~", "*"),
    *("**", "_", "```", "```c\n", "\n```", "|", "|-", "| - |\n", "|---|\n", "<think>", "</think>", "<", "<|", "</s>"),
    *("<|im_end|>", "<answer>", "\\", "\\\\", "$", "(", ")", "[", "]", " ", "  ", "\n", "\t", "\r\n", "-", "--", " - "),
    *("=", ":", ",", ", ", "/", ".", "..", "?", "!", "if ", "not ", "no, ", "wait", "the ", "is ", "so ", "it is "),
    *("A", "A ", "A, ", "A and ", "(A) ", "A/", "I ", "C is correct", "a", "1", "1,", "1,000", "1 000 ", "12 ", "1."),
    *("1-2,", "4-", "line 4, ", "L4-", "lines ", "10^", "1/2", "= ", "x = 1, ", "- 1", "+", "±", "0", "9", "n/"),
    *("e.g. ", "E. c", "1e", "part 1 ", "in case 2, ", "答案", "选", "是", "は", "답", "उत्तर", "الإجابة", "ответ "),
    *("В", "С", "é", "e\u0301", "\u0301", "\u200b", "\u202e", "\ufeff", "\0", "\x1b[", "\x1b", "\ud800", "\udc00"),
    *("\ufdfa", "\u2460", "½", "²", "\U0001d402", "\U0001f1e8", "１", "٣", "Ⓒ", "\u2028", "\x85", "İ", "ß", "ﬀ"),
    *("yes, ", "confirmed", "~", "that is wrong", "C is right, ", "i.e. ", "=> ", "∴", "in total "),
)  # fmt: skip
"""What patterns begin with, end with, or may stumble over."""


def _joined(rng: random.Random, size: int, pieces: list[str]) -> str:
    found, length = [], 0
    while length < size:
        found.append(rng.choice(pieces))
        length += len(found[-1]) + 1
    return rng.choice(("", " ", "\n", ". ", ", ")).join(found)


def draws(entries: list[corpus.Entry]) -> dict[str, Draw]:
    """Ways of making a text, by name."""
    texts = [entry.text for entry in entries if entry.text]
    sentences = [piece for text in texts for piece in re.split(r"(?<=[.\n])", text) if piece]
    tokens = [piece for text in texts for piece in re.split(r"(\W)", text) if piece]
    known = [word for table in vars(words).values() if isinstance(table, tuple) for word in table] + [
        *"ABCDEFGHIJ0123456789"
    ]

    def changed(rng: random.Random, size: int) -> str:
        text = list(rng.choice(texts))
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(3)] = rng.choice(
                (rng.choice(HEADS), rng.choice(tokens), chr(rng.randrange(0x3000)))
            )
        return "".join(text)

    def repeated(rng: random.Random, size: int) -> str:
        piece = "".join(rng.choices(HEADS, k=rng.randrange(1, 4))) if rng.random() < 0.7 else rng.choice(sentences)
        return rng.choice(HEADS) + piece * (size // len(piece) + 1) + rng.choice(HEADS)

    def runs(rng: random.Random, size: int) -> str:
        parts = rng.randrange(1, 6)
        return "".join(rng.choice(HEADS) * rng.randrange(1, size // parts + 2) for _ in range(parts))

    return {
        "sentences": lambda rng, size: _joined(rng, size, sentences),
        "tokens": lambda rng, size: "".join(rng.choices(tokens, k=size // 3 + 1)),
        "words": lambda rng, size: _joined(rng, size, known),
        "changed": changed,
        "repeated": repeated,
        "runs": runs,
        "heads": lambda rng, size: "".join(rng.choices(HEADS, k=size // 3 + 1)),
        "any": lambda rng, size: "".join(chr(rng.randrange(0x110000)) for _ in range(size // 3 + 1)),
        "low": lambda rng, size: "".join(chr(rng.randrange(0x600)) for _ in range(size // 2 + 1)),
    }


def clipped(text: str, most: int = LONGEST) -> str:
    """Its beginning of about so many bytes of UTF-8 at most."""
    length = len(text.encode("utf-8", "surrogatepass"))
    return text if length <= most else text[: len(text) * most // length]


def seconds(question: Question, text: str, order: tuple[int, ...], finish: str) -> float:
    """CPU time of grading it."""
    start = time.process_time()
    grade(question, text, order=order, reasoning="", finish=finish)
    return time.process_time() - start


def fuzz(texts: int, seed: int, tell: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Grade so many texts; what came of it."""
    entries = corpus.entries()
    ways = draws(entries)
    rng = random.Random(seed)
    plain.characters()  # made at first use
    times = np.zeros(texts)
    crashes: list[str] = []
    slow: list[tuple[float, int, str, tuple[Question, str, tuple[int, ...], str]]] = []
    length = 0
    for i in range(texts):
        question = rng.choice(entries).question
        order = tuple(rng.sample(range(len(question.choices)), len(question.choices))) if rng.random() < 0.5 else ()
        way, size = rng.choice(list(ways)), int(10 ** rng.uniform(0, 4.3))
        text = clipped(ways[way](rng, size))
        length += len(text)
        case = question, text, order, rng.choice(("", "stop", "length"))
        try:
            times[i] = seconds(*case)
        except Exception:
            crashes.append(f"text {i} ({way}): {traceback.format_exc().strip().splitlines()[-1]}")
            continue
        slow.append((float(times[i]), i, way, case))
        above = [one for one in slow if one[0] * 1000 > BAR_MS]
        slow = above if len(above) >= KEPT else sorted(slow, key=lambda one: -one[0])[:KEPT]
        tell(i + 1, texts)
    again = [(min(seconds(*case) for _ in range(10)), i, way, case) for _, i, way, case in slow]
    first_above = int((times * 1000 > BAR_MS).sum())
    for took, i, _, _ in again:
        times[i] = min(times[i], took)
    again.sort(key=lambda one: -one[0])
    return {
        "texts": texts,
        "seed": seed,
        "characters": length,
        "crashes": crashes,
        "cpu_s": round(float(times.sum()), 1),
        "median_ms": round(float(np.median(times)) * 1000, 3),
        "p99_ms": round(float(np.quantile(times, 0.99)) * 1000, 3),
        "max_ms": round(float(times.max()) * 1000, 3),
        "above_at_first": first_above,
        "above": {f"{ms} ms": int((times * 1000 > ms).sum()) for ms in SHARES_MS},
        "slowest": [
            f"{took * 1000:.2f} ms, text {i}: {way}, {case[0].kind}, {len(case[1])} characters: {case[1][:50]!r}"
            for took, i, way, case in again[:SLOWEST]
        ],
    }


def growth(seed: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the slowest of five texts, by way of making and size."""
    entries, rng = corpus.entries(), random.Random(seed)
    found: dict[str, dict[str, float]] = {}
    for name, draw in draws(entries).items():
        if name == "changed":
            continue
        found[name] = {}
        for size in GROWTH:
            took = [seconds(rng.choice(entries).question, clipped(draw(rng, size), size), (), "") for _ in range(5)]
            found[name][f"{size // 1000} kB"] = round(max(took) * 1000, 1)
    return found


def main(argv: list[str] | None = None) -> int:
    """Fuzz and print; exit code 1 if a text crashes the grader or takes longer than the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--texts", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    args = parser.parse_args(argv)
    facts = stamp()
    with Progress("texts") as progress:
        found = fuzz(args.texts, args.seed, progress)
    found["growth"] = growth(args.seed)
    print(f"{found['texts']} texts, {found['characters']} characters, {found['cpu_s']} s of CPU time")
    print(f"{len(found['crashes'])} crashes")
    print(*found["crashes"], sep="\n", end="\n" if found["crashes"] else "")
    print(f"median {found['median_ms']} ms, 99th percentile {found['p99_ms']} ms, longest {found['max_ms']} ms")
    print("texts above: " + ", ".join(f"{ms}: {n}" for ms, n in found["above"].items()), end="; ")
    print(f"{found['above_at_first']} above {BAR_MS} ms when first graded")
    print(*(f"  {line}" for line in found["slowest"]), sep="\n")
    print(f"{'slowest of five, ms':20}" + "".join(f"{f'{size // 1000} kB':>10}" for size in GROWTH))
    for name, row in found["growth"].items():
        print(f"{name:20}" + "".join(f"{ms:10.1f}" for ms in row.values()))
    print(json.dumps({"grading": found, **facts}))
    return 1 if found["crashes"] or found["max_ms"] > BAR_MS else 0


if __name__ == "__main__":
    sys.exit(main())
