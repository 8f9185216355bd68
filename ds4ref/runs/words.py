"""Puts the figures and verdicts of comparisons into words, the same in every tool and in every report."""

from __future__ import annotations

import math
from typing import Any

from .stats import BETTER, LEAST_GRADED, LEAST_P, REFUSED, SAME, UNCLEAR, WORSE, Interval, p_is_bound

SPEEDS = (("prefill", "prefill_tps", "prefill_tokens"), ("decode", "gen_tps", "gen_tokens"))
"""Metric name, its column in results, and the column with the amount of work (tokens)."""
_FASTER = {BETTER: "faster", WORSE: "slower", SAME: "the same", UNCLEAR: "unclear"}


def speed(metric: str, i: Interval, verdict: str, margin: float = 1.0, a: str = "A", b: str = "B") -> str:
    """Return the comparison of a speed as a sentence: "decode: B is 1.23 x (1.20 to 1.26) as fast as A: faster".

    ``i`` is the change from run ``a`` to run ``b`` and ``margin`` the largest that counts as the same, in per cent;
    ``verdict`` is that of ``stats.judge``.
    """
    if verdict == REFUSED:
        return f"{metric}: {b} is not compared with {a}: {i.method}"
    ratio, low, high = (1 + value / 100 for value in (i.estimate, i.low, i.high))
    if not i.known:
        word = "" if verdict == UNCLEAR else f"{_FASTER[verdict]}, "
        return f"{metric}: {b} is {ratio:.2f} x as fast as {a} ({word}no interval: {i.method})"
    digits = 2 if high - low >= 0.02 else 3 if high - low >= 0.002 else 4
    word = f"same within {margin:g} %" if verdict == SAME else _FASTER[verdict]
    if verdict == UNCLEAR and i.detectable is not None and math.isfinite(i.detectable):
        word += f", {i.n} rounds detect {i.detectable:.1f} %"
    return f"{metric}: {b} is {ratio:.{digits}f} x ({low:.{digits}f} to {high:.{digits}f}) as fast as {a}: {word}"


def score(i: Interval, verdict: str, margin: float = 1.0, b: str = "B", averaged: bool = False) -> str:
    """Return the comparison of a score as a sentence: "B is worse by 11 points (3.4 to 19)".

    ``i`` and ``margin`` are as for ``speed``, in percentage points; ``averaged`` is whether some questions have scores
    between right and wrong.
    """
    if not i.known:
        return f"no verdict: {counted(i.n, 'question')}, and an interval needs {LEAST_GRADED}"
    if verdict == SAME:
        return f"the same within {margin:g} {_unit(margin)}"
    size, ends = abs(i.estimate), (i.low, i.high) if i.estimate > 0 else (-i.high, -i.low)
    span = f"{brief(size)} {_unit(size)} ({brief(ends[0])} to {brief(ends[1])})"
    if verdict in (BETTER, WORSE):
        return f"{b} is {verdict} by {span}"
    if ends[0] > 0:
        word = "higher" if i.estimate > 0 else "lower"
        return f"{b} is {word} by {span}, less than the {margin:g} {_unit(margin)} that counts"
    borne = ", if many questions bore it" if averaged else ""  # if few do, it must be twice as large (eval.md)
    return f"no difference found; one of {brief(i.detectable or math.nan)} points would have been{borne}"


def other(metric: str, unit: str, i: Interval, verdict: str, margin: float) -> str:
    """Return the comparison of any other quantity as a sentence; ``i`` and ``margin`` are in ``unit``."""
    word = f"same within {margin:g} {unit}" if verdict == SAME else verdict
    span = f"interval {spanned(i)}" if i.known else f"no interval: {i.method}"
    return f"{metric}: {word} ({signed(i.estimate)} {unit}, {span})"


def cost(name: str, a: float, b: float, change: Interval) -> str:
    """Return a sentence on what a question costs in both runs: "tokens per question: 210 in A, 420 in B".

    ``a`` and ``b`` are the means, ``change`` is the typical change in per cent.
    """
    figures = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (a, b))
    sentence = f"{name} per question: {' in A, '.join(figures)} in B"
    if not change.known:
        return sentence + (
            f"; {change.estimate:+.1f} % in each" if change.method == "no spread" and change.estimate else ""
        )
    return f"{sentence}; typically {change.estimate:+.1f} % ({change.low:+.1f} to {change.high:+.1f})"


def signed(value: float) -> str:
    """Format a difference with its sign, rounded to a few digits; "" if it is unknown."""
    if math.isnan(value):
        return ""
    return f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.1e}"


def spanned(i: Interval) -> str:
    """Format an interval as text, "" if it is unknown."""
    return f"{signed(i.low)} to {signed(i.high)}" if i.known else ""


def brief(points: float) -> str:
    """Format percentage points with one decimal below ten, none above, and one significant digit below 0.1."""
    if abs(points) < 0.095:
        return f"{points:.1g}"
    return f"{points:.0f}" if abs(points) >= 9.95 else f"{points:.1f}".removesuffix(".0")


def probability(p: float) -> str:
    """Format a p-value; the smallest one of a permutation test as a bound ("< 0.0004")."""
    return f"< {LEAST_P:g}" if p_is_bound(p) else f"{p:.2g}"


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural if needed: "1 question", "2 questions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shortened(value: Any) -> str:
    """Format a value of a run's metadata for a table: digests and long texts are cut, None becomes "-"."""
    if value is None:
        return "-"
    text = " ".join(str(value).split())
    head, _, tail = text.rpartition(":")
    if len(tail) >= 40 and all(c in "0123456789abcdef+" for c in tail):
        return f"{head}:{tail[:12]}".removeprefix(":")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unit(points: float) -> str:
    return "point" if brief(points) == "1" else "points"
