"""Speeds of two runs at equal work, cell by cell, and the comparison of two arms measured in turn.

A cell is one speed: of a place (a depth, or a test) in one repetition. Runs are compared only at places where both did
the same amount of work. Cells of rows with warnings are left out, and a speed with many of them is not compared
(``warnings``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import stats, warnings
from .stats import Interval

SPEEDS = (("prefill", "prefill_tps", "prefill_tokens"), ("decode", "gen_tps", "gen_tokens"))
"""Metric name, its column in results, and the column with the amount of work (tokens)."""
BETTER, WORSE, SAME, UNCLEAR, REFUSED = "better", "worse", "same", "unclear", "refused"
CONFIDENCE = 0.98
"""Joint confidence of all statements of one comparison."""
MARGIN = 1.0
"""Per cent below which a difference of speed counts as none."""

Place = tuple[int, str]
"""Depth in tokens, and the name of the test ("" for a walk over depths), since several tests may end at one depth."""
Cells = dict[Place, dict[int, float]]
"""Place -> repetition -> speed in tokens per second."""
Rows = Sequence[dict[str, Any]]


def place(row: dict[str, Any]) -> Place:
    """Return the place of a results row."""
    return int(row["ctx_tokens"]), str(row.get("test") or "")


def cells(rows: Rows, column: str, work: str) -> dict[Place, tuple[Any, dict[int, float]]]:
    """Return place -> (amount of work, speeds by repetition) for the given columns, without rows that have warnings."""
    by_place: dict[Place, tuple[Any, dict[int, float]]] = {}
    for row in warnings.without(rows, column):
        value = row.get(column)
        if isinstance(value, (int, float)) and value > 0:
            entry = by_place.setdefault(place(row), (row.get(work), {}))
            entry[1][int(row.get("rep") or 0)] = float(value)
    return by_place


def common(rows_a: Rows, rows_b: Rows, column: str, work: str) -> tuple[Cells, Cells]:
    """Return the speeds at places that both runs measured with the same amount of work."""
    one, other = cells(rows_a, column, work), cells(rows_b, column, work)
    places = [at for at in sorted(one.keys() & other.keys()) if one[at][0] == other[at][0]]
    return {at: one[at][1] for at in places}, {at: other[at][1] for at in places}


def refusal(rows_a: Rows, rows_b: Rows, column: str, names: tuple[str, str] = ("A", "B")) -> str:
    """Return why the warnings of either run forbid a comparison of the speeds in ``column``, "" if they do not."""
    found = {name: warnings.refusal(rows, column) for name, rows in zip(names, (rows_a, rows_b), strict=True)}
    return "; ".join(f"{name}: {why}" for name, why in found.items() if why)


def repetitions(side: Cells) -> list[int]:
    """Return all repetition numbers in order."""
    return sorted({rep for values in side.values() for rep in values})


def matrix(side: Cells, places: Sequence[Place], reps: Sequence[int]) -> np.ndarray:
    """Return log speeds (repetitions, places), NaN for a missing cell."""
    return np.array([[math.log(side[at][rep]) if rep in side[at] else math.nan for at in places] for rep in reps])


def in_turn(
    rows_a: Rows, rows_b: Rows, confidence: float = CONFIDENCE, names: tuple[str, str] = ("A", "B")
) -> dict[str, Interval]:
    """Return, for each metric that both runs measured, the log of the ratio B / A; repetitions are the independent
    values.

    The interval is unknown, the estimate NaN, and the method says why, for a metric that warnings forbid to compare.
    ``confidence`` is joint over all metrics (Bonferroni).
    """
    intervals = {name: refused(why) for name, column, _ in SPEEDS if (why := refusal(rows_a, rows_b, column, names))}
    pairs = {name: common(rows_a, rows_b, column, work) for name, column, work in SPEEDS if name not in intervals}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    for name, (one, other) in pairs.items():
        reps = repetitions(one)
        ratios = matrix(other, list(one), reps) - matrix(one, list(one), reps)
        intervals[name] = stats.rounds_interval(ratios, 1 - (1 - confidence) / len(pairs))
    return intervals


def refused(why: str) -> Interval:
    """Return the interval of a metric that is not compared."""
    return stats.unknown(math.nan, 0, why)


def judge(i: Interval, margin: float = MARGIN, floor: float = 0.0) -> str:
    """Return "better", "worse", "same", "unclear" or "refused" for a difference, in the units of ``margin``.

    Better or worse: the interval lies on one side of zero, by at least ``floor``, and the estimate is at least
    ``margin``; same: the whole interval lies within the margin.
    """
    if math.isnan(i.estimate):
        return REFUSED
    if -margin <= i.low and i.high <= margin:
        return SAME
    if abs(i.estimate) >= margin:
        if i.low > floor:
            return BETTER
        if i.high < -floor:
            return WORSE
    return UNCLEAR


def said(metric: str, i: Interval, judgement: str, margin: float = MARGIN, a: str = "A", b: str = "B") -> str:
    """Return the comparison of a speed as a sentence: "decode: B is 1.23 x (1.20 to 1.26) as fast as A: faster".

    i   change from ``a`` to ``b`` in per cent
    """
    if judgement == REFUSED:
        return f"{metric}: {b} is not compared with {a}: {i.method}"
    ratio, low, high = (1 + value / 100 for value in (i.estimate, i.low, i.high))
    if not i.known:
        word = "" if judgement == UNCLEAR else f"{_WORDS[judgement]}, "
        return f"{metric}: {b} is {ratio:.2f} x as fast as {a} ({word}no interval: {i.method})"
    digits = 2 if high - low >= 0.02 else 3 if high - low >= 0.002 else 4
    word = f"same within {margin:g} %" if judgement == SAME else _WORDS[judgement]
    if judgement == UNCLEAR and i.detectable is not None and math.isfinite(i.detectable):
        word += f", {i.n} rounds detect {i.detectable:.1f} %"
    return f"{metric}: {b} is {ratio:.{digits}f} x ({low:.{digits}f} to {high:.{digits}f}) as fast as {a}: {word}"


_WORDS = {BETTER: "faster", WORSE: "slower", SAME: "the same", UNCLEAR: "unclear"}


def per_cent(i: Interval) -> Interval:
    """Convert the interval of a log ratio to per cent of change."""

    def change(x: float) -> float:
        return math.expm1(min(x, 700.0)) * 100

    detectable = None if i.detectable is None else change(i.detectable)
    low, high = (change(i.low), change(i.high)) if i.known else (i.low, i.high)
    return Interval(change(i.estimate), low, high, i.n, i.method, i.p, detectable)
