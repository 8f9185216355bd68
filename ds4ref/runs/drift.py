"""Detects whether the machine's speed drifted while a run was measured, with Cox and Stuart's sign test.

Each speed is divided by the mean at its depth, so that only the machine's changes over time remain. This needs
repetitions: in a single pass over the depths, depth and time increase together and cannot be told apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .columns import place

SPEEDS = (("prefill", "prefill_tps"), ("decode", "gen_tps"))
DRIFT_P = 0.01
TIE = 1e-12
"""Differences of log speeds below this are rounding errors and count as ties."""


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for the user per speed (prefill, decode) that drifted."""
    sentences = []
    for name, column in SPEEDS:
        p, change = drift(rows, column)
        if p < DRIFT_P:
            sentences.append(f"{name} drifted {change:+.1f} % from first to second half (p = {p:.2g})")
    return sentences


def drift(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[float, float]:
    """Return the p-value of "no trend over time" for the speeds in ``column``, and how much they changed.

    The change is from the first half of the run to the second, in per cent.
    """
    measured = [row for row in rows if isinstance(row.get(column), (int, float)) and row[column] > 0]
    if len({int(row.get("rep") or 0) for row in measured}) < 2:
        return 1.0, 0.0
    places: dict[tuple[int, str], list[float]] = {}
    for row in measured:
        places.setdefault(place(row), []).append(math.log(row[column]))
    means = {place: statistics.fmean(values) for place, values in places.items()}
    ordered = sorted(measured, key=_moment)
    series = [math.log(row[column]) - means[place(row)] for row in ordered]
    half = len(series) // 2
    return trend(series), 100 * math.expm1(statistics.fmean(series[half:]) - statistics.fmean(series[:half]))


def trend(series: Sequence[float]) -> float:
    """Return the two-sided p-value of the sign test between the first and the second half of a time series."""
    from .stats import sign_test  # imported here because scipy is slow to load

    half = len(series) // 2
    return sign_test([late - early for early, late in zip(series, series[len(series) - half :], strict=False)], TIE)


def _moment(row: Mapping[str, Any]) -> tuple[int, float]:
    at = row.get("at")
    return int(row.get("rep") or 0), row["ctx_tokens"] if at is None else at
