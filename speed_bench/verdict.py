"""Comparison of two targets that were measured in turn, printed at the end of the run.

It uses the words and margins of ``ds4-report compare`` (``ds4ref.runs.speed``), and like it refuses speeds with
many warnings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .runner import Measurement


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison, as readable lines and as a JSON document."""

    lines: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)


def verdict(run: Measurement) -> Verdict:
    """Compare two lanes that have several repetitions; the result is empty for any other run."""
    if len(run.lanes) != 2:
        return Verdict()
    from ds4ref.runs.speed import CONFIDENCE, MARGIN, REFUSED, UNCLEAR, in_turn, judge, per_cent, said

    a, b = run.lanes
    lines, by_metric = [], {}
    for metric, interval in in_turn(a.samples, b.samples, names=(a.name, b.name)).items():
        change = per_cent(interval)
        judgement = judge(change, MARGIN)
        lines.append(said(metric, change, judgement, MARGIN, a.name, b.name))
        by_metric[metric] = {
            "verdict": judgement if change.known or judgement == REFUSED else UNCLEAR,
            "estimate_percent": _finite(change.estimate),
            "low_percent": _finite(change.low), "high_percent": _finite(change.high), "rounds": change.n,
            "detectable_percent": _finite(change.detectable), "method": change.method,
        }  # fmt: skip
    document = {"a": a.name, "b": b.name, "confidence": CONFIDENCE, "margin_percent": MARGIN, **by_metric}
    return Verdict(tuple(lines), document if by_metric else {})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
