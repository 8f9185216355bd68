"""Generate the pack ``long``, which tests recall from long contexts: each question asks for a fact that was stated 4 k
to 64 k tokens earlier, in notes that consist of such facts.

The notes of a porter say who has which locker, who moved to another one, and who writes letters to whom, one fact per
line. Six questions share one text: two ask for a locker (``long-lookup``), two for that of somebody who moved
(``long-latest``), two for that of the person to whom somebody writes (``long-hop``). The line with the answer is at
most as many tokens before the end of the notes as the question states (its depth), and at least ``NEAREST`` of that:
farther back than the cache rows that the sparse attention's indexer selects would reach if they were the newest ones,
which are 512 of 4 tokens each (ds4ref/archs/deepseek4). All other lines have the same forms, so that only the name
identifies the line.

Tokens are estimated from characters, so that all engines are asked the same. The notes depend on seed and sizes, and on
nothing else: randomness comes only from ``random.Random(text).random()``, which gives the same numbers in all versions
of Python.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from . import packs
from .packs import Header, Pack, Question

NAME = "long"
SIZES = (4096, 8192, 16384, 32768, 65536)
LEAST, MOST = 4096, 65536
"""Smallest and largest depth in tokens."""
NEAREST = 3 / 4
"""Minimum distance, as a share of the depth, of the line with the answer from the end of the notes."""
MARGIN = 1 / 16
"""How much more of the notes lies farther back than the depth, as a share of it."""
TEXTS, EACH = 5, 2
"""Minimum number of texts of a pack, and number of questions of each source about one text."""
SOURCES = LOOKUP, LATEST, HOP = "long-lookup", "long-latest", "long-hop"
SETTINGS: dict[str, int | float | str] = {
    "think": "none", "tokens": 256, "soft_limit": 0, "hard_limit": 0, "temperature": 0.0
}  # fmt: skip
CANARY = "ds4ref-eval long canary 3b8e5d07-61f2-4c9a-a0d4-94e7c2f15a68: not for training data"
CHARACTERS = 3.3
"""Characters of the notes per token of DeepSeek's tokenizer (measured)."""

T = TypeVar("T")

INTRODUCTION = (
    "These are a porter's notes, oldest first, one a line. If somebody has moved, the new locker counts and the old "
    "one does not."
)
ASKED = "Which locker does {} have at the end of these notes? Give its number."
ASKED_HOP = "Which locker does the person to whom {} writes letters have at the end of these notes? Give its number."

_FIRST = [a + b for a in ("Ma", "Be", "Ka", "Lo", "Ri", "Sa", "To", "Vi", "Ne", "Ju")
          for b in ("rin", "len", "dra", "sko", "bel", "mo", "nia", "tus", "gar", "wyn")]  # fmt: skip
_LAST = [a + b for a in ("Hol", "Bren", "Var", "Kes", "Mar", "Tol", "Win", "Dor", "Fal", "Gren", "Lind", "Ost")
         for b in ("berg", "mann", "sen", "ton", "ley", "wick", "well", "ford", "by", "stad")]  # fmt: skip
_BLOCK = ("has",) * 6 + ("moved",) * 2 + ("writes",) * 2
"""Kinds of ten successive lines; their order is random."""
_FORMS = {"has": "{} has locker {}.", "moved": "{} has moved to locker {}.", "writes": "{} writes letters to {}."}


def make(sizes: Sequence[int] = SIZES, seed: int = 0) -> Pack:
    """Return the pack with questions at these depths (``sizes``, in tokens), in ascending order; another ``seed`` gives
    other notes."""
    depths = sorted(set(sizes))
    texts = math.ceil(TEXTS / len(depths))
    asked = [q for depth in depths for i in range(texts) for q in _questions(depth, f"{seed} {i}")]
    about = "facts far back in generated notes, depths in tokens, estimated from characters"
    return Pack(Header(NAME, 1, CANARY, "MIT", about, SETTINGS), tuple(asked))


class _Line(NamedTuple):
    """One note: ``who`` has or moved to the locker ``what``, or writes letters to the person ``what``."""

    kind: str
    who: str
    what: str

    @property
    def text(self) -> str:
        return _FORMS[self.kind].format(self.who, self.what)

    @property
    def tokens(self) -> int:
        return round(len(self.text + "\n") / CHARACTERS)


def _questions(depth: int, seed: str) -> list[Question]:
    """Return the questions about one generated text, alternating between the sources."""
    for attempt in itertools.count():
        rng = random.Random(f"{NAME} {seed} {depth} {attempt}")
        lines = _notes(rng, depth)
        if chosen := _chosen(rng, lines, _far(lines, depth)):
            break
    text = "\n".join([INTRODUCTION, "", *(line.text for line in lines), ""])
    made = []
    for source, who, answer in chosen:
        asked = (ASKED_HOP if source == HOP else ASKED).format(who)
        plain = Question("-", source, f"{depth} tokens back", "unmeasured", "integer", f"{text}\n{asked}", (), answer,
                         verifier="notes", licence="MIT", depth=depth)  # fmt: skip
        made.append(msgspec.structs.replace(plain, id=packs.stamped(plain)))
    return made


def _chosen(rng: random.Random, lines: Sequence[_Line], far: Sequence[_Line]) -> list[tuple[str, str, str]]:
    """Choose at random what to ask about the lines ``far``: (source, person asked about, answer), no answer twice;
    empty if the lines do not suffice."""
    moved = {line.who for line in lines if line.kind == "moved"}
    stays = {line.who: line.what for line in far if line.kind == "has" and line.who not in moved}
    candidates = {
        LOOKUP: list(stays.items()),
        LATEST: [(line.who, line.what) for line in far if line.kind == "moved"],
        HOP: [(line.who, stays[line.what]) for line in far if line.kind == "writes" and line.what in stays],
    }
    chosen: list[tuple[str, str, str]] = []
    for _, source in itertools.product(range(EACH), (HOP, LATEST, LOOKUP)):  # the rarest first
        left = [(who, answer) for who, answer in candidates[source] if answer not in {entry[2] for entry in chosen}]
        if not left:
            return []
        chosen.append((source, *_draw(rng, left)))
    return chosen


def _far(lines: Sequence[_Line], depth: int) -> list[_Line]:
    """Return the lines that begin at most ``depth`` and at least ``NEAREST * depth`` tokens before the end."""
    far, back = [], 0
    for line in reversed(lines):
        back += line.tokens
        if NEAREST * depth <= back <= depth:
            far.append(line)
    return far[::-1]


def _notes(rng: random.Random, depth: int) -> list[_Line]:
    """Generate notes of ``depth`` tokens, and the margin before them.

    Nobody moves twice or writes twice, and no locker is ever given to a second person. Names are so few that many
    people share a first or a last name.
    """
    several = math.ceil(math.sqrt(depth / 8))
    first, last = (_shuffled(rng, names)[:several] for names in (_FIRST, _LAST))
    people = iter(_shuffled(rng, [f"{one} {other}" for one in first for other in last]))
    lockers = _unlike(rng, 10_000, 100_000)
    left, settled, silent = depth * (1 + MARGIN), [], []
    lines: list[_Line] = []
    kinds: list[str] = ["has"] * len(_BLOCK)  # at first only people with lockers, who can move or write later
    while left > 0:
        kinds = kinds or _shuffled(rng, _BLOCK)
        kind = kinds.pop()
        if kind == "has":
            who = next(people)
            line = _Line(kind, who, str(next(lockers)))
            settled.append(who)
            silent.append(who)
        elif kind == "moved":
            line = _Line(kind, _take(rng, settled), str(next(lockers)))
        else:
            # Write to somebody in one of the latest lines: both lines that a question needs are then about equally far.
            other = _draw(rng, [one.who for one in lines[-20:] if one.kind == "has"])
            line = _Line(kind, _take(rng, [one for one in silent if one != other]), other)
            silent.remove(line.who)
        lines.append(line)
        left -= line.tokens
    return lines


def _below(rng: random.Random, n: int) -> int:
    return int(rng.random() * n)


def _draw(rng: random.Random, among: Sequence[T]) -> T:
    return among[_below(rng, len(among))]


def _take(rng: random.Random, among: list[T]) -> T:
    return among.pop(_below(rng, len(among)))


def _unlike(rng: random.Random, low: int, high: int) -> Iterator[int]:
    """Yield random numbers from ``low`` to ``high - 1``, none of them twice."""
    seen: set[int] = set()
    while True:
        number = low + _below(rng, high - low)
        if number not in seen:
            seen.add(number)
            yield number


def _shuffled(rng: random.Random, values: Sequence[T]) -> list[T]:
    mixed = list(values)
    for i in range(len(mixed) - 1, 0, -1):
        j = _below(rng, i + 1)
        mixed[i], mixed[j] = mixed[j], mixed[i]
    return mixed
