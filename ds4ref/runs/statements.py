"""The results of comparing two runs: findings with their verdicts, and the limits by which they are judged."""

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
"""Metadata that must be equal in runs whose speeds or likelihoods are compared: name -> keys for ``Run.fact``."""


@dataclass(frozen=True)
class Limits:
    """Limits by which differences between two runs are judged, in per cent (of scores: in percentage points).

    margin       smaller differences do not count
    fail         if B is worse by at least this much, the comparison as a whole fails (for use in CI)
    confidence   confidence level, of all statements of one comparison together
    """

    margin: float = 1.0
    fail: float = 3.0
    confidence: float = 0.98


LIMITS = {"bench": Limits(), "eval": Limits(fail=2.0, confidence=0.95), "vectors": Limits(margin=0.5, fail=1.0)}


@dataclass(frozen=True)
class Finding:
    """One statement of a comparison: how much run B differs from run A in one quantity.

    metric     the compared quantity
    unit       unit of ``interval`` and ``margin``
    interval   the difference, positive if B is better
    verdict    "better", "worse", "same", "unclear" or "refused"; if refused, there is no estimate and
               ``interval.method`` says why
    margin     differences below it count as "same"
    a, b       the values of both runs, if known; of a speed the median over repetitions (geometric mean over depths)
    averaged   of scores: whether some questions have scores between right and wrong
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
        """Return the finding as a sentence for users; ``a`` and ``b`` name the runs in it."""
        if self.unit == "points":
            return words.score(self.interval, self.verdict, self.margin, b, self.averaged)
        if self.metric in {name for name, _, _ in words.SPEEDS}:
            return words.speed(self.metric, self.interval, self.verdict, self.margin, a, b)
        return words.other(self.metric, self.unit, self.interval, self.verdict, self.margin)

    def cells(self) -> list[str]:
        """Return the cells of a table row.

        They are: metric, value of A, value of B, difference, interval, verdict, number of independent values, method,
        smallest difference that could be detected.
        """
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
    """The result of comparing run B with run A (``compare.compare``).

    a, b      names of the runs
    kind      kind of the runs: "bench", "eval" or "vectors"
    verdict   the findings' verdicts combined; "incomparable" if there are none
    design    how the values are paired, for example "in turn" (``speeds``) or "paired by question"
    notes     what was left out, and other reasons for caution; if not comparable, why
    depths    of speeds: (depth, metric, ratio B / A of medians)
    fails     reasons why the comparison fails by ``Limits.fail``, empty if it passes
    pairs     of graded runs: the comparison question by question
    differs   of graded runs: (name, value in A, value in B) of each difference in their metadata
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
        """Return whether B is not worse than A by ``Limits.fail`` or more, that is, ``fails`` is empty."""
        return not self.fails

    def says(self, a: str = "A", b: str = "B") -> list[str]:
        """Return the verdict as sentences, one for each finding; ``a`` and ``b`` name the runs in them."""
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
    """Combine the verdicts of several findings into one; "mixed" if some are better and some worse."""
    if WORSE in verdicts and BETTER in verdicts:
        return MIXED
    return next((verdict for verdict in (WORSE, REFUSED, BETTER, UNCLEAR) if verdict in verdicts), SAME)


def unrecorded(a: Measured, b: Measured) -> list[str]:
    """Return a note on metadata that must be equal (``IDENTITY``) but are missing in a run; [] if none are missing."""
    names = [n for n, keys in IDENTITY.items() if a.run.fact(*keys) is None or b.run.fact(*keys) is None]
    return [f"not recorded whether both used the same {', '.join(names)}"] if names else []


def incomparable(a: Measured, b: Measured, why: list[str]) -> Comparison:
    """Return a comparison without findings, for runs that cannot be compared for the reasons ``why``."""
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
    """Return the comparison of runs A and B that has these findings, with the combined verdict.

    ``more`` sets further fields of the comparison.
    """
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
    """Return ``value``, or None if it is infinite or NaN, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None
