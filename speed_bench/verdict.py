"""What two lanes that were measured in turn say about each other, at the end of their run.

The same words and margins as ``ds4-report compare``, which knows more of them (``ds4ref.runs.speed``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ds4ref.runs.stats import Interval

from .runner import Measurement


@dataclass(frozen=True)
class Verdict:
    """Lines for people, and the same for programs."""

    lines: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)


def verdict(run: Measurement) -> Verdict:
    """Of two lanes with several repetitions; empty for anything else."""
    if len(run.lanes) != 2:
        return Verdict()
    from ds4ref.runs.speed import CONFIDENCE, MARGIN, SAME, in_turn, judge, per_cent

    a, b = run.lanes
    lines, found = [], {}
    for metric, interval in in_turn(a.samples, b.samples).items():
        shown = per_cent(interval)
        said = judge(shown, MARGIN)
        what = f"same within {MARGIN:g} %" if said == SAME else said
        lines.append(f"{b.name} against {a.name}: {metric} {_spelled(what, shown)}")
        found[metric] = {
            "verdict": said if shown.known else "unclear", "estimate_percent": shown.estimate,
            "low_percent": _finite(shown.low), "high_percent": _finite(shown.high), "rounds": shown.n,
            "detectable_percent": _finite(shown.detectable), "method": shown.method,
        }  # fmt: skip
    document = {"a": a.name, "b": b.name, "confidence": CONFIDENCE, "margin_percent": MARGIN, **found}
    return Verdict(tuple(lines), document if found else {})


def _spelled(what: str, i: Interval) -> str:
    if not i.known:
        return f"{i.estimate:+.2f} %, no interval from {i.n} round(s): {i.method}"
    least = "" if _finite(i.detectable) is None else f", {i.n} rounds find {i.detectable:.1f} %"
    return f"{what} ({i.estimate:+.2f} %, interval {i.low:+.2f} to {i.high:+.2f}{least})"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
