"""A simulated session: a table of pass times, drafts whose acceptance is a process, and a clock that both move."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ds4ref.drafts.speculation import Speculation

TABLE = (0.0, 1.0, 1.2, 1.35, 1.5, 1.68, 1.85, 2.05, 2.25)
"""Seconds of a pass by rows, as a mixture of experts might need."""
STEEP = (0.0, 1.0, 1.6, 1.75, 1.9, 2.05, 2.2, 2.4, 2.6)
"""The first further row is dear, others are cheap."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A draft whose tokens are right by chance: ``rate(position in the text, position in the draft)``.

    The text is 1, 2, 3, ...: right is position + 1, wrong is 0.
    """

    def __init__(
        self,
        clock: Clock,
        rate: Callable[[int, int], float],
        *,
        name: str = "given",
        seconds: float = 0.0,
        answers: float = 1.0,
        seed: int = 1,
        grades: Callable[[int], int] | None = None,
    ):
        self.name, self.clock, self.rate, self.seconds, self.answers = name, clock, rate, seconds, answers
        self.random, self.grade, self.grades, self.asked = random.Random(seed), 0, grades, 0

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        self.clock.now += self.seconds * limit
        self.asked += limit
        if self.random.random() >= self.answers:
            return []
        if self.grades:
            self.grade = self.grades(len(tokens))
        end = len(tokens)
        return [end + i + 1 if self.random.random() < self.rate(end, i) else 0 for i in range(limit)]

    def truncate(self, pos: int) -> None:
        pass


def run(
    speculation: Speculation,
    clock: Clock,
    count: int,
    table: Callable[[int, int], float] | Sequence[float] = TABLE,
    *,
    tokens: list[int] | None = None,
    noise: float = 0.05,
    hiccups: float = 0.01,
    first: float = 1.0,
    unit: float = 0.1,
    seed: int = 5,
) -> float:
    """Decode ``count`` tokens of the text 1, 2, 3, ...; return the seconds without noise, in units of a plain pass.

    table: units by rows, or by (position, rows). noise: relative, of every pass; hiccups: share of passes of three times
    the length; first: factor of the first pass of each number of rows, as if a recording had to be made.
    """
    chance, clean, seen = random.Random(seed), 0.0, set[int]()
    tokens = tokens if tokens is not None else []
    end = len(tokens) + count
    while len(tokens) < end:
        tokens.append(len(tokens) + 1)
        started = clock.now
        draft = speculation.propose(tokens, None, end - len(tokens))
        assert len(draft) <= end - len(tokens)
        rows = 1 + len(draft)
        units = table(len(tokens), rows) if callable(table) else table[rows]
        clean += units + (clock.now - started) / unit
        taken = units * max(0.5, chance.gauss(1, noise)) * (3 if chance.random() < hiccups else 1)
        taken *= first if rows not in seen else 1
        seen.add(rows)
        clock.now += unit * taken
        speculation.passed(rows, unit * taken)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == len(tokens) + 1:
            tokens.append(len(tokens) + 1)
            accepted += 1
        if draft:
            speculation.settled(accepted)
    return clean


def simulated(
    rate: Callable[[int, int], float],
    count: int,
    *,
    depth: int = 0,
    drafts: dict[str, Any] | None = None,
    **options: Any,
) -> float:
    """Return the speed-up over plain decode."""
    clock = Clock()
    speculation = Speculation([Process(clock, rate, **(drafts or {}))], depth, clock=clock)
    return count / run(speculation, clock, count, **options)
