"""Compares the speeds of two benchmark runs, A and B, by the logarithms of their ratios at equal depths.

A round is one repetition of all depths. The statistics depend on how the runs were made:

    in turn     one run of ``ds4-bench`` measured both targets, in turn at every depth; the ratios B / A of each round
                are an independent sample
    separate    two runs with repetitions: the rounds of each are independent samples. The machine may have changed
                between the runs, which looks like a difference, so one below ``SEPARATE`` per cent gives no verdict
    single      one run has fewer than three repetitions: the spread is unknown, so there is no interval. For a verdict,
                80 % of the depths must differ by more than ``SINGLE`` per cent in the same direction

Rows with a warning that concerns a speed (``warnings``) are left out; if there are many, that speed is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import drift, stats, warnings
from .columns import place
from .scored import Rows
from .statements import LIMITS, Comparison, Finding, Limits, conclude, incomparable, unrecorded
from .stats import BETTER, REFUSED, SAME, UNCLEAR, WORSE, Interval, judge, per_cent
from .store import Measured
from .words import SPEEDS

SEPARATE, SINGLE = 3.0, 5.0
IDENTICAL = 1e-12
"""Largest difference of the logarithms of two speeds that count as identical, as those of a file and its copy are."""

Place = tuple[int, str]
Cells = dict[Place, dict[int, float]]
"""Maps (depth, test) to the speeds there: number of the repetition -> tokens per second."""


@dataclass(frozen=True)
class Speeds:
    """The result of comparing the speeds of runs A and B.

    findings   one per metric (prefill, decode)
    design     how the runs were made: "in turn", "separate" or "single"
    cells      by metric, the speeds that were compared: those of A, and those of B
    """

    findings: tuple[Finding, ...]
    design: str
    cells: dict[str, tuple[Cells, Cells]]


def speeds(
    a: Rows, b: Rows, in_turn: bool, limits: Limits = LIMITS["bench"], names: tuple[str, str] = ("A", "B")
) -> Speeds:
    """Compare the speeds in the rows ``a`` and ``b`` of two runs.

    in_turn   whether one run of ``ds4-bench`` measured both, in turn at every depth
    limits    what counts as a difference
    names     the runs' names, for messages

    Compared are depths and tests at which both runs processed the same number of tokens. A metric that they do not
    have in common is left out; one with many warnings gets the verdict "refused".
    """
    findings, pairs, design = {}, {}, ""
    for metric, column, work in SPEEDS:
        whys = [f"{name}: {why}" for name, rows in zip(names, (a, b), strict=True)
                if (why := warnings.refusal(rows, column))]  # fmt: skip
        if whys:
            reason = stats.unknown(math.nan, 0, "; ".join(whys))
            findings[metric] = Finding(metric, "%", reason, REFUSED, limits.margin)
        elif (pair := common(a, b, column, work))[0]:
            pairs[metric] = pair
    for metric, (one, other) in pairs.items():
        confidence = 1 - (1 - limits.confidence) / len(pairs)
        interval, design, verdict = _judged(one, other, in_turn, confidence, limits.margin)
        a_mean, b_mean = (math.exp(_log_mean(_median(v) for v in side.values())) for side in (one, other))
        findings[metric] = Finding(metric, "%", interval, verdict, limits.margin, a_mean, b_mean)
    return Speeds(tuple(findings[name] for name, _, _ in SPEEDS if name in findings), design, pairs)


def cells(rows: Rows, column: str, work: str) -> dict[Place, tuple[Any, dict[int, float]]]:
    """Return a dict from (depth, test) to (amount of work, {repetition: speed in tokens per second}).

    ``column`` has the speeds and ``work`` the number of tokens processed. Rows with warnings on this speed are left
    out.
    """
    by_place: dict[Place, tuple[Any, dict[int, float]]] = {}
    for row in warnings.without(rows, column):
        value = row.get(column)
        if isinstance(value, (int, float)) and value > 0:
            entry = by_place.setdefault(place(row), (row.get(work), {}))
            entry[1][int(row.get("rep") or 0)] = float(value)
    return by_place


def common(a: Rows, b: Rows, column: str, work: str) -> tuple[Cells, Cells]:
    """Return the speeds of each run at the depths and tests that both measured with the same amount of work.

    ``column`` has the speeds and ``work`` the number of tokens processed.
    """
    one, other = cells(a, column, work), cells(b, column, work)
    places = [at for at in sorted(one.keys() & other.keys()) if one[at][0] == other[at][0]]
    return {at: one[at][1] for at in places}, {at: other[at][1] for at in places}


def repetitions(side: Cells) -> list[int]:
    """Return the numbers of all repetitions of a run's speeds, in order."""
    return sorted({rep for values in side.values() for rep in values})


def matrix(side: Cells, places: Sequence[Place], reps: Sequence[int]) -> np.ndarray:
    """Return the logarithms of a run's speeds, (repetitions, places), NaN where one is missing.

    A place is a depth and a test.
    """
    return np.array([[math.log(side[at][rep]) if rep in side[at] else math.nan for at in places] for rep in reps])


def _judged(one: Cells, other: Cells, in_turn: bool, confidence: float, margin: float) -> tuple[Interval, str, str]:
    """Judge the change from the speeds ``one`` to ``other``; return (change in per cent, design, verdict)."""
    depths, reps = list(one), (repetitions(one), repetitions(other))
    enough = min(map(len, reps)) >= stats.LEAST
    if enough and in_turn:
        ratios = matrix(other, depths, reps[0]) - matrix(one, depths, reps[0])
        interval, design, floor = stats.rounds_interval(ratios, confidence), "in turn", 0.0
    elif enough:
        base = np.array([_log_mean(one[d].values()) for d in depths])
        first, second = (
            np.array([stats.trimmed(row[np.isfinite(row)]) for row in matrix(side, depths, r) - base])
            for side, r in zip((one, other), reps, strict=True)
        )
        interval, design, floor = stats.welch_interval(first, second, confidence), "separate", SEPARATE
    else:
        interval, design, floor = stats.unknown(0.0, min(map(len, reps))), "single", 0.0
    if interval.known:
        interval = per_cent(interval)
        return interval, design, judge(interval, margin, floor)
    changes = np.array([_log_mean(other[d].values()) - _log_mean(one[d].values()) for d in depths])
    if np.abs(changes).max() <= IDENTICAL:
        return replace(interval, estimate=0.0, low=0.0, high=0.0, method="identical"), design, SAME
    interval = per_cent(replace(interval, estimate=stats.trimmed(changes)))
    low, high = 100 * np.expm1(np.quantile(changes, (stats.TRIM, 1 - stats.TRIM)))
    bar = max(SINGLE, margin)
    return interval, design, BETTER if low > bar else WORSE if high < -bar else UNCLEAR


def _log_mean(values: Iterable[float]) -> float:
    return float(np.mean([math.log(value) for value in values]))


def _median(values: dict[int, float]) -> float:
    """Return the median over repetitions, which is also the speed that tables show."""
    return float(np.median(list(values.values())))


def compare_speeds(a: Measured, b: Measured, limits: Limits) -> Comparison:
    """Compare the speeds of run B with those of run A."""
    group = a.run.fact("arms", "group")
    result = speeds(a.rows, b.rows, group is not None and group == b.run.fact("arms", "group"), limits)
    if not result.findings:
        return incomparable(a, b, ["no depth was measured with the same number of tokens in both"])
    depths = tuple(
        (at[0], metric, _median(other[at]) / _median(one[at]))
        for metric, (one, other) in result.cells.items()
        for at in one
    )
    notes = unrecorded(a, b) + _notes(a, b, result)
    return conclude(a, b, result.findings, limits, result.design, notes, depths=depths)


def _notes(a: Measured, b: Measured, result: Speeds) -> list[str]:
    notes = []
    if result.design == "separate":
        notes.append(f"not measured in turn: differences up to {SEPARATE:g} % may be drift of the machine")
    if result.design == "single":
        walks = min(len(repetitions(side)) for sides in result.cells.values() for side in sides)
        notes.append(
            f"{'one repetition' if walks == 1 else 'two repetitions'} each: the spread is unknown, so there is no "
            f"interval; a verdict needs 80 % of the depths beyond {SINGLE:g} %"
        )
    notes += [f"{s.name}: {note}" for s in (a, b) for note in (*drift.notes(s.rows), *warnings.notes(s.rows))]
    one, other = ({place(row): row.get("gen_digest") for row in side.rows} for side in (a, b))
    both = [at for at in one if one[at] and other.get(at)]
    unlike = sum(one[at] != other[at] for at in both)
    if unlike:
        notes.append(f"different tokens were decoded at {unlike} of {len(both)} depths: decode work differed")
    omitted = {
        at for name, column, work in SPEEDS for side in (a, b) for at in cells(side.rows, column, work)
        if at not in result.cells.get(name, ({}, {}))[0]
    }  # fmt: skip
    if omitted:
        notes.append(f"{len(omitted)} depth(s) left out: not in both, with another number of tokens, or with warnings")
    return notes
