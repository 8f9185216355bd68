"""Speeds of two runs at equal work, cell by cell, and what two arms that were measured in turn say together.

A cell is a place (a depth, or a test) in a repetition. Both sides of a comparison must have done the same work there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import stats
from .stats import Interval

SPEEDS = (("prefill", "prefill_tps", "prefill_tokens"), ("decode", "gen_tps", "gen_tokens"))
"""Name, column, and the column that says how much work it was."""
BETTER, WORSE, SAME, UNCLEAR = "better", "worse", "same", "unclear"
CONFIDENCE = 0.98
"""Of all statements of one comparison together."""
MARGIN = 1.0
"""Per cent below which a difference of speed is none."""

Place = tuple[int, str]
"""A depth, and the name of the test where it is none of a walk: several tests may end at one depth."""
Cells = dict[Place, dict[int, float]]
"""Speeds by place and repetition."""
Rows = Sequence[dict[str, Any]]


def place(row: dict[str, Any]) -> Place:
    """Where a row belongs."""
    return int(row["ctx_tokens"]), str(row.get("test") or "")


def cells(rows: Rows, column: str, work: str) -> dict[Place, tuple[Any, dict[int, float]]]:
    """The work of each place, and its speeds by repetition."""
    found: dict[Place, tuple[Any, dict[int, float]]] = {}
    for row in rows:
        value = row.get(column)
        if isinstance(value, (int, float)) and value > 0:
            entry = found.setdefault(place(row), (row.get(work), {}))
            entry[1][int(row.get("rep") or 0)] = float(value)
    return found


def common(rows_a: Rows, rows_b: Rows, column: str, work: str) -> tuple[Cells, Cells]:
    """Speeds at the places that both measured with the same amount of work."""
    one, other = cells(rows_a, column, work), cells(rows_b, column, work)
    places = [at for at in sorted(one.keys() & other.keys()) if one[at][0] == other[at][0]]
    return {at: one[at][1] for at in places}, {at: other[at][1] for at in places}


def repetitions(side: Cells) -> list[int]:
    """All of them, in order."""
    return sorted({rep for values in side.values() for rep in values})


def matrix(side: Cells, places: Sequence[Place], reps: Sequence[int]) -> np.ndarray:
    """Log speeds (rounds, places), NaN where one is missing."""
    return np.array([[math.log(side[at][rep]) if rep in side[at] else math.nan for at in places] for rep in reps])


def in_turn(rows_a: Rows, rows_b: Rows, confidence: float = CONFIDENCE) -> dict[str, Interval]:
    """The log ratio of B to A by metric, rounds being the independent values; metrics that both measured.

    ``confidence`` is that of all of them together (Bonferroni).
    """
    pairs = {name: common(rows_a, rows_b, column, work) for name, column, work in SPEEDS}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    found = {}
    for name, (one, other) in pairs.items():
        reps = repetitions(one)
        ratios = matrix(other, list(one), reps) - matrix(one, list(one), reps)
        found[name] = stats.rounds_interval(ratios, 1 - (1 - confidence) / len(pairs))
    return found


def judge(i: Interval, margin: float = MARGIN, floor: float = 0.0) -> str:
    """A verdict needs an interval on one side of zero (of ``floor``) and a difference that matters; "same" needs the
    whole interval within the margin."""
    if -margin <= i.low and i.high <= margin:
        return SAME
    if abs(i.estimate) >= margin:
        if i.low > floor:
            return BETTER
        if i.high < -floor:
            return WORSE
    return UNCLEAR


def per_cent(i: Interval) -> Interval:
    """A log ratio as per cent of change."""

    def change(x: float) -> float:
        return math.expm1(min(x, 700.0)) * 100

    detectable = None if i.detectable is None else change(i.detectable)
    low, high = (change(i.low), change(i.high)) if i.known else (i.low, i.high)
    return Interval(change(i.estimate), low, high, i.n, i.method, i.p, detectable)
