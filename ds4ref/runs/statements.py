"""What a comparison states: findings with their verdicts, the limits that judge them, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import words
from .pairs import Pairing
from .stats import BETTER, REFUSED, SAME, UNCLEAR, WORSE, Interval
from .store import Measured

MIXED, INCOMPARABLE = "mixed", "incomparable"
IDENTITY = {"model": ("model", "sha256"), "prompt": ("prompt_sha256",), "numerics": ("numerics",)}
"""Facts that must be the same in runs whose speeds or likelihoods are compared."""


@dataclass(frozen=True)
class Limits:
    """What counts, in per cent or percentage points: differences from ``margin`` on; the gate fails from ``fail`` on.

    confidence   of all statements of one comparison together
    """

    margin: float = 1.0
    fail: float = 3.0
    confidence: float = 0.98


LIMITS = {"bench": Limits(), "eval": Limits(fail=2.0, confidence=0.95), "vectors": Limits(margin=0.5, fail=1.0)}


@dataclass(frozen=True)
class Finding:
    """One statement of a comparison: how much B differs from A.

    metric     the compared quantity
    unit       unit of ``interval`` and ``margin``
    interval   the difference, positive if B is better
    verdict    "better", "worse", "same", "unclear", or "refused", whose interval says why and has no estimate
    margin     differences below it count as "same"
    a, b       the values of both runs, if known; of a speed the median over repetitions (geometric mean over depths)
    averaged   of scores: some questions have scores between right and wrong
    """

    metric: str
    unit: str
    interval: Interval
    verdict: str
    margin: float
    a: float | None = None
    b: float | None = None
    averaged: bool = False

    def sentence(self, a: str = "A", b: str = "B") -> str:
        """Return the finding as a sentence for users; ``a``, ``b``: names of the runs."""
        if self.unit == "points":
            return words.score(self.interval, self.verdict, self.margin, b, self.averaged)
        if self.metric in {name for name, _, _ in words.SPEEDS}:
            return words.speed(self.metric, self.interval, self.verdict, self.margin, a, b)
        return words.other(self.metric, self.unit, self.interval, self.verdict, self.margin)

    def cells(self) -> list[str]:
        """Return the row of a table: metric, A, B, difference, interval, verdict, n, method, detectable."""
        i = self.interval
        return [
            self.metric, *("" if value is None else f"{value:.4g}" for value in (self.a, self.b)),
            f"{words.signed(i.estimate)} {self.unit}" if self.verdict != REFUSED else "", words.spanned(i),
            f"same within {self.margin:g} {self.unit}" if self.verdict == SAME else self.verdict, str(i.n), i.method,
            "" if i.detectable is None else f"{i.detectable:.2g} {self.unit}",
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        i = self.interval
        return {
            "metric": self.metric, "unit": self.unit, "verdict": self.verdict, "estimate": finite(i.estimate),
            "low": finite(i.low), "high": finite(i.high), "n": i.n, "method": i.method, "p": i.p,
            "detectable": i.detectable, "margin": self.margin, "a": self.a, "b": self.b,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    a, b      names of the runs
    kind      kind of the runs
    verdict   the findings' verdicts combined
    design    how the runs were made
    notes     what was left out, and other reasons for caution; if not comparable, why
    depths    (depth, metric, ratio B/A of medians) of speed comparisons
    fails     reasons why the gate fails, empty if it passes
    pairs     paired questions of graded runs
    differs   (name, value in A, value in B) of facts in which graded runs differ
    """

    a: str
    b: str
    kind: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    design: str = ""
    notes: tuple[str, ...] = ()
    depths: tuple[tuple[int, str, float], ...] = ()
    fails: tuple[str, ...] = ()
    pairs: Pairing | None = None
    differs: tuple[tuple[str, str, str], ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the gate passes, that is ``fails`` is empty."""
        return not self.fails

    def says(self, a: str = "A", b: str = "B") -> list[str]:
        """Return the verdict as sentences, one a finding; ``a``, ``b``: names of the runs."""
        return [finding.sentence(a, b) for finding in self.findings] or [f"not comparable: {'; '.join(self.notes)}"]

    def ratios(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows of a table of speeds: depth, then B / A of each metric."""
        metrics = list(dict.fromkeys(metric for _, metric, _ in self.depths))
        known = {(depth, metric): f"{ratio:.4f}" for depth, metric, ratio in self.depths}
        rows = [
            [f"{depth:,}", *(known.get((depth, m), "") for m in metrics)] for depth in sorted({d for d, _ in known})
        ]
        return ["context", *(f"{metric} B/A" for metric in metrics)], rows

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "a": self.a, "b": self.b, "kind": self.kind, "verdict": self.verdict, "design": self.design,
            "passes": self.passes, "fails": list(self.fails), "notes": list(self.notes),
            "findings": [finding.as_json() for finding in self.findings],
            **({} if self.pairs is None else {"questions": self.pairs.as_json()}),
            **({} if not self.differs else {"differs": {name: values for name, *values in self.differs}}),
        }  # fmt: skip


def overall(verdicts: Sequence[str]) -> str:
    """Combine the verdicts of several findings to one."""
    if WORSE in verdicts and BETTER in verdicts:
        return MIXED
    return next((verdict for verdict in (WORSE, REFUSED, BETTER, UNCLEAR) if verdict in verdicts), SAME)


def unrecorded(a: Measured, b: Measured) -> list[str]:
    """Return a note on facts that must be the same, and that a run lacks."""
    names = [n for n, keys in IDENTITY.items() if a.run.fact(*keys) is None or b.run.fact(*keys) is None]
    return [f"not recorded whether both used the same {', '.join(names)}"] if names else []


def incomparable(a: Measured, b: Measured, why: list[str]) -> Comparison:
    """Return a comparison that could not be made; ``why``: the reasons."""
    return Comparison(a.name, b.name, a.run.kind, INCOMPARABLE, notes=tuple(why), fails=tuple(why))


def conclude(
    a: Measured,
    b: Measured,
    findings: Sequence[Finding],
    limits: Limits,
    design: str,
    notes: Sequence[str],
    **more: Any,
) -> Comparison:
    """Return the comparison with these findings; ``more``: other fields of it."""
    fails = [
        f"{f.metric} is worse by {-f.interval.estimate:.2f} {f.unit} (limit {limits.fail:g})"
        for f in findings
        if f.verdict == WORSE and -f.interval.estimate >= limits.fail
    ]
    fails += [f"{f.metric} is not compared: {f.interval.method}" for f in findings if f.verdict == REFUSED]
    verdict = overall([f.verdict for f in findings])
    return Comparison(
        a.name, b.name, a.run.kind, verdict, tuple(findings), design, tuple(notes), fails=tuple(fails), **more
    )


def finite(value: float | None) -> float | None:
    """Return a number as JSON has it: None where it is infinite or none."""
    return value if value is not None and math.isfinite(value) else None
