"""Comparison of two runs: B is better than A, worse, the same within a margin, or not comparable.

Speed is compared by log ratios at equal depths. The statistics depend on how the runs were made:

    in turn     both arms of one ``ds4-bench --arm`` run: A and B alternate; the ratios of rounds are independent
                samples
    separate    two runs with repetitions: the rounds of each are independent samples; drift between the runs looks
                like a difference, so a small one gives no verdict (``separate`` in the thresholds)
    single      fewer than three repetitions of one of the runs: the spread is unknown, so there is no interval

Rows with a warning that concerns a speed (``ds4ref.runs.warnings``) are left out; with many of them it is refused.

Without an interval, a verdict needs 80 % of the depths beyond a fixed limit (``single``) on one side.

Graded runs are paired by question (``ds4ref.runs.scored``, as by ``ds4-eval compare``), vectors by text. Graded runs
may differ in engine, model and settings: these are what is compared. All statements of a comparison share one
error rate (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ds4ref.runs import drift, scored, stats, thinking, warnings
from ds4ref.runs.speed import (
    BETTER,
    REFUSED,
    SAME,
    SPEEDS,
    UNCLEAR,
    WORSE,
    Cells,
    Place,
    cells,
    common,
    judge,
    matrix,
    per_cent,
    place,
    refusal,
    refused,
    repetitions,
    said,
)
from ds4ref.runs.stats import Interval

from .sources import Measured
from .thresholds import Margins, Thresholds

MIXED, INCOMPARABLE = "mixed", "incomparable"
SAME_FIGURES = 1e-12
"""Largest difference of the logarithms of two values that count as equal, as in a file and its copy."""


@dataclass(frozen=True)
class Finding:
    """One statement of a comparison: how much B differs from A.

    metric     the compared quantity
    unit       unit of ``interval`` and ``margin``
    interval   the difference, positive if B is better
    verdict    "better", "worse", "same", "unclear", or "refused", whose interval says why and has no estimate
    margin     differences below it count as "same"
    a, b       the values of both runs, if known; of a speed the median over repetitions (geometric mean over depths)
    """

    metric: str
    unit: str
    interval: Interval
    verdict: str
    margin: float
    a: float | None = None
    b: float | None = None

    def sentence(self, a: str = "A", b: str = "B") -> str:
        """Return the finding as a sentence for users; ``a``, ``b``: names of the runs."""
        if self.metric in {name for name, _, _ in SPEEDS}:
            return said(self.metric, self.interval, self.verdict, self.margin, a, b)
        if self.verdict == REFUSED:
            return f"{self.metric}: refused ({self.interval.method})"
        wording = f"same within {self.margin:g} {self.unit}" if self.verdict == SAME else self.verdict
        span = f"interval {spanned(self.interval)}" if self.interval.known else f"no interval: {self.interval.method}"
        return f"{self.metric}: {wording} ({signed(self.interval.estimate)} {self.unit}, {span})"


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    a, b      names of the runs
    kind      kind of the runs
    verdict   the findings' verdicts combined
    design    "in turn", "separate" or "single"
    depths    (depth, metric, ratio B/A of medians) of speed comparisons
    fails     reasons why the gate fails, empty if it passes
    pairs     paired questions of graded runs
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
    pairs: scored.Pairing | None = None

    @property
    def passes(self) -> bool:
        """Whether the gate passes, that is ``fails`` is empty."""
        return not self.fails

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "a": self.a, "b": self.b, "kind": self.kind, "verdict": self.verdict, "design": self.design,
            "passes": self.passes, "fails": list(self.fails), "notes": list(self.notes),
            "findings": [
                {
                    "metric": f.metric, "unit": f.unit, "verdict": f.verdict, "estimate": _finite(f.interval.estimate),
                    "low": _finite(f.interval.low), "high": _finite(f.interval.high), "n": f.interval.n,
                    "method": f.interval.method, "p": f.interval.p, "detectable": f.interval.detectable,
                    "margin": f.margin, "a": f.a, "b": f.b,
                }
                for f in self.findings
            ],
            **({} if self.pairs is None else {"questions": self.pairs.as_json()}),
        }  # fmt: skip


@dataclass
class _Draft:
    """Findings and notes collected so far."""

    limits: Margins
    confidence: float
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, metric: str, unit: str, i: Interval, verdict: str, a: float | None, b: float | None) -> None:
        self.findings.append(Finding(metric, unit, i, verdict, self.limits.margin, a, b))


def compare(a: Measured, b: Measured, thresholds: Thresholds | None = None) -> Comparison:
    """Compare run B with run A."""
    thresholds = thresholds or Thresholds()
    obstacles = mismatches(a, b, thresholds.gate.differ)
    if obstacles:
        return _incomparable(a, b, obstacles)
    compare_kind = {"bench": _speed, "eval": _graded, "vectors": _vectors}.get(a.run.kind)
    if compare_kind is None:
        return _incomparable(a, b, [f"runs of kind {a.run.kind} are not compared"])
    return compare_kind(a, b, thresholds)


def signed(value: float) -> str:
    """Format a difference with its sign, rounded to a few digits; "" if it is unknown."""
    if math.isnan(value):
        return ""
    return f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.1e}"


def spanned(i: Interval) -> str:
    """Format an interval as text, "" if it is unknown."""
    return f"{signed(i.low)} to {signed(i.high)}" if i.known else ""


def overall(verdicts: Sequence[str]) -> str:
    """Combine the verdicts of several findings to one."""
    if WORSE in verdicts and BETTER in verdicts:
        return MIXED
    for verdict in (WORSE, REFUSED, BETTER, UNCLEAR):
        if verdict in verdicts:
            return verdict
    return SAME


def mismatches(a: Measured, b: Measured, differ: Sequence[str] = ()) -> list[str]:
    """Return the reasons why A and B cannot be compared; a fact that one run lacks is none.

    ``differ``: facts that may differ.
    """
    if a.run.kind != b.run.kind:
        return [f"{a.name} is a {a.run.kind} run, {b.name} a {b.run.kind} run"]
    reasons = [f"{one.name} has no rows" for one in (a, b) if not one.rows]
    if a.run.kind == "eval":
        return reasons
    reasons += [f"{one.name} is {one.run.status}" for one in (a, b) if one.run.status != "complete"]
    for name, keys in _IDENTITY.items():
        if name in differ:
            continue
        one, other = a.run.fact(*keys), b.run.fact(*keys)
        if one is not None and other is not None and one != other:
            reasons.append(f"different {name}: {_short(one)} and {_short(other)}")
    return reasons


_IDENTITY = {
    "model": ("model", "sha256"),
    "prompt": ("prompt_sha256",),
    "numerics": ("numerics",),
}


def _unknown(a: Measured, b: Measured) -> list[str]:
    names = [n for n, keys in _IDENTITY.items() if a.run.fact(*keys) is None or b.run.fact(*keys) is None]
    return [f"not recorded whether both used the same {', '.join(names)}"] if names else []


# --- speed


def _speed(a: Measured, b: Measured, thresholds: Thresholds) -> Comparison:
    draft = _Draft(thresholds.speed, thresholds.speed.confidence or thresholds.gate.confidence, _unknown(a, b))
    whys = {name: refusal(a.rows, b.rows, column) for name, column, _ in SPEEDS}
    pairs = [(name, *common(a.rows, b.rows, column, work)) for name, column, work in SPEEDS if not whys[name]]
    pairs = [(name, one, other) for name, one, other in pairs if one]
    if not pairs and not any(whys.values()):
        return _incomparable(a, b, ["no depth was measured with the same number of tokens in both"])
    confidence = 1 - (1 - draft.confidence) / max(1, len(pairs))
    in_turn = a.run.fact("arms", "group") is not None and a.run.fact("arms", "group") == b.run.fact("arms", "group")
    design, depths = "", []
    for name, one, other in pairs:
        interval, design, verdict = _judged(one, other, in_turn, confidence, draft.limits)
        means = [math.exp(_log_mean(_median(v) for v in side.values())) for side in (one, other)]
        draft.add(name, "%", interval, verdict, *means)
        depths += [(d[0], name, _median(other[d]) / _median(one[d])) for d in one]
    for name, why in whys.items():
        if why:
            draft.add(name, "%", refused(why), REFUSED, None, None)
    draft.findings.sort(key=lambda finding: list(whys).index(finding.metric))
    draft.notes += _speed_notes(a, b, pairs, design, draft.limits)
    return _conclude(a, b, draft, thresholds, design, tuple(depths))


def _judged(one: Cells, other: Cells, in_turn: bool, confidence: float, limits: Margins) -> tuple[Interval, str, str]:
    """Return (change from A to B in per cent, design, verdict)."""
    depths, reps = list(one), (repetitions(one), repetitions(other))
    enough = min(map(len, reps)) >= stats.LEAST
    if enough and in_turn:
        ratios = matrix(other, depths, reps[0]) - matrix(one, depths, reps[0])
        interval, design, floor = stats.rounds_interval(ratios, confidence), "in turn", 0.0
    elif enough:
        base = np.array([_log_mean(one[d].values()) for d in depths])
        means = [_centres(matrix(side, depths, r) - base) for side, r in zip((one, other), reps, strict=True)]
        interval, design, floor = stats.welch_interval(means[0], means[1], confidence), "separate", limits.separate
    else:
        interval, design, floor = stats.unknown(0.0, min(map(len, reps))), "single", 0.0
    if interval.known:
        interval = per_cent(interval)
        return interval, design, judge(interval, limits.margin, floor)
    ratios = np.array([_log_mean(other[d].values()) - _log_mean(one[d].values()) for d in depths])
    if np.abs(ratios).max() <= SAME_FIGURES:
        return replace(interval, estimate=0.0, low=0.0, high=0.0, method="identical"), design, SAME
    interval = per_cent(replace(interval, estimate=stats.trimmed(ratios)))
    low, high = 100 * np.expm1(np.quantile(ratios, (stats.TRIM, 1 - stats.TRIM)))
    bar = max(limits.single, limits.margin)
    return interval, design, BETTER if low > bar else WORSE if high < -bar else UNCLEAR


def _centres(rows: np.ndarray) -> np.ndarray:
    return np.array([stats.trimmed(row[np.isfinite(row)]) for row in rows])


def _log_mean(values: Iterable[float]) -> float:
    return float(np.mean([math.log(value) for value in values]))


def _median(values: dict[int, float]) -> float:
    """Return the speed at a place as every table has it: the median over repetitions."""
    return float(np.median(list(values.values())))


def _speed_notes(
    a: Measured, b: Measured, pairs: list[tuple[str, Cells, Cells]], design: str, limits: Margins
) -> list[str]:
    notes = []
    if design == "separate":
        notes.append(f"not measured in turn: differences up to {limits.separate:g} % may be drift of the machine")
    if design == "single":
        walks = min(len(repetitions(side)) for _, *sides in pairs for side in sides)
        notes.append(
            f"{'one repetition' if walks == 1 else 'two repetitions'} each: the spread is unknown, so there is no "
            f"interval; a verdict needs 80 % of the depths beyond {limits.single:g} %"
        )
    for side in (a, b):
        notes += [f"{side.name}: {note}" for note in drift.notes(side.rows)]
        notes += [f"{side.name}: {note}" for note in warnings.notes(side.rows)]
    digests = [{place(row): row.get("gen_digest") for row in side.rows} for side in (a, b)]
    common = [d for d in digests[0] if digests[0][d] and digests[1].get(d)]
    unlike = sum(digests[0][d] != digests[1][d] for d in common)
    if unlike:
        notes.append(f"different tokens were decoded at {unlike} of {len(common)} depths: decode work differed")
    omitted = set()
    for name, column, work in SPEEDS:
        compared: Collection[Place] = next((one for metric, one, _ in pairs if metric == name), {})
        omitted |= {at for side in (a, b) for at in cells(side.rows, column, work) if at not in compared}
    if omitted:
        notes.append(f"{len(omitted)} depth(s) left out: not in both, with another number of tokens, or with warnings")
    return notes


# --- graded runs and vectors


def _graded(a: Measured, b: Measured, thresholds: Thresholds) -> Comparison:
    draft = _Draft(thresholds.graded, thresholds.graded.confidence or thresholds.gate.confidence)
    pairs = scored.pair(a.rows, b.rows, draft.confidence)
    if pairs.whole is None or pairs.whole.difference.n < 2:
        return _incomparable(a, b, ["fewer than two questions were graded in both"])
    whole = pairs.whole
    draft.add("score", "points", whole.points, scored.verdict(whole, draft.limits.margin), 100 * whole.a.estimate,
              100 * whole.b.estimate)  # fmt: skip
    draft.notes.append(
        f"{whole.difference.n} questions: {len(pairs.gained)} right only (or more often) in B, "
        f"{len(pairs.lost)} only in A"
    )
    draft.notes += [f"{side.name} is {side.run.status}" for side in (a, b) if side.run.status != "complete"]
    draft.notes += scored.remarks(pairs, (a.run.facts, b.run.facts))
    draft.notes += [f"{side.name}: {note}" for side in (a, b) for note in thinking.notes(side.rows, side.run.facts)]
    call = scored.close_call(whole, draft.confidence)
    draft.notes += [call] if call else []
    for name, one, other in scored.differences(a.run.facts, b.run.facts):
        draft.notes.append(f"{name}: {one} in A, {other} in B")
    comparison = _conclude(a, b, draft, thresholds, "paired by question")
    return replace(comparison, pairs=pairs)


def _vectors(a: Measured, b: Measured, thresholds: Thresholds) -> Comparison:
    draft = _Draft(thresholds.vectors, thresholds.vectors.confidence or thresholds.gate.confidence, _unknown(a, b))
    one, other = ({str(r.get("id")): r for r in side.rows if _has_nll(r)} for side in (a, b))
    common = [i for i in one if i in other and one[i]["tokens"] == other[i]["tokens"]]
    if len(common) < 2:
        return _incomparable(a, b, ["fewer than two vectors have an NLL in both runs"])
    tokens = np.array([one[i]["tokens"] for i in common], np.float64)
    nll = [np.array([side[i]["nll"] for i in common], np.float64) for side in (one, other)]
    interval = stats.weighted_interval(nll[0] - nll[1], tokens, draft.confidence)
    ppl = [float(np.exp(values.sum() / tokens.sum())) for values in nll]
    verdict = judge(per_cent(interval), draft.limits.margin)
    draft.add("perplexity (lower is better)", "%", per_cent(interval), verdict, *ppl)
    draft.notes.append(
        f"{len(common)} vectors, {int(tokens.sum())} tokens; mean NLL differs by {interval.estimate:+.5f}"
    )
    return _conclude(a, b, draft, thresholds, "paired by text")


def _has_nll(row: dict[str, Any]) -> bool:
    return (
        isinstance(row.get("nll"), (int, float)) and isinstance(row.get("tokens"), (int, float)) and row["tokens"] > 0
    )


# --- the end


def _conclude(
    a: Measured,
    b: Measured,
    draft: _Draft,
    thresholds: Thresholds,
    design: str,
    depths: tuple[tuple[int, str, float], ...] = (),
) -> Comparison:
    fails = [
        f"{f.metric} is worse by {-f.interval.estimate:.2f} {f.unit} (limit {draft.limits.fail:g})"
        for f in draft.findings
        if f.verdict == WORSE and -f.interval.estimate >= draft.limits.fail
    ]
    fails += [f"{f.metric} is not compared: {f.interval.method}" for f in draft.findings if f.verdict == REFUSED]
    if thresholds.gate.unclear == "fail":
        fails += [f"{f.metric} is unclear" for f in draft.findings if f.verdict == UNCLEAR]
    verdict = overall([f.verdict for f in draft.findings])
    return Comparison(
        a.name, b.name, a.run.kind, verdict, tuple(draft.findings), design, tuple(draft.notes), depths, tuple(fails)
    )


def _incomparable(a: Measured, b: Measured, why: list[str]) -> Comparison:
    return Comparison(a.name, b.name, a.run.kind, INCOMPARABLE, notes=tuple(why), fails=tuple(why))


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
