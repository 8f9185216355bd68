"""Compare two runs: B is better than A, worse, the same within a margin, or not comparable.

Speed is compared by log ratios at equal depths. The statistics depend on how the runs were made:

    in turn     both targets of one ``ds4-bench`` run: A and B alternate; the ratios of rounds are independent samples
    separate    two runs with repetitions: the rounds of each are independent samples; drift between the runs looks
                like a difference, so one below ``SEPARATE`` per cent gives no verdict
    single      fewer than three repetitions of one of the runs: the spread is unknown, so there is no interval; a
                verdict needs 80 % of the depths beyond ``SINGLE`` per cent on one side

Rows with a warning that concerns a speed (``warnings``) are left out; with many of them the speed is refused.

Graded runs are paired by question, by digest or else by id: epochs are averaged first, and samples without a grade
(failed, stopped) are left out on both sides and counted. They may differ in engine, model and settings: these are what
is compared. Vectors are paired by text. All statements of a comparison share one error rate (Bonferroni).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from . import drift, stats, thinking, warnings, words
from .columns import place
from .scored import Answered, answered
from .stats import BETTER, REFUSED, SAME, UNCLEAR, WORSE, Interval, judge, per_cent
from .store import Measured

MIXED, INCOMPARABLE = "mixed", "incomparable"
SPEEDS = (("prefill", "prefill_tps", "prefill_tokens"), ("decode", "gen_tps", "gen_tokens"))
"""Metric name, its column in results, and the column with the amount of work (tokens)."""
SEPARATE, SINGLE = 3.0, 5.0
IDENTICAL = 1e-12
"""Largest difference of the logarithms of two values that count as equal, as in a file and its copy."""
IDENTITY = {"model": ("model", "sha256"), "prompt": ("prompt_sha256",), "numerics": ("numerics",)}
VOLATILE = ("name", "url", "file", "served")
"""Fields of an engine's identity that say where it ran, ignored when comparing which engine it was."""

Rows = Sequence[Mapping[str, Any]]
Place = tuple[int, str]
Cells = dict[Place, dict[int, float]]
"""Depth and test -> repetition -> speed in tokens per second."""


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
        if self.metric in {name for name, _, _ in SPEEDS}:
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
class Contrast:
    """Scores of runs A and B over the same questions.

    a, b        score of each run, as a share from 0 to 1
    difference  B - A as a share; its interval is unknown for fewer than ``stats.LEAST_GRADED`` questions
    p           p-value of "no difference", for any number of questions
    averaged    some questions have scores between right and wrong
    """

    name: str
    a: Interval
    b: Interval
    difference: Interval
    p: float
    averaged: bool = False

    @property
    def points(self) -> Interval:
        """Return the difference in percentage points."""
        return self.difference.scaled(100)

    def cells(self) -> list[str]:
        """Return the row of a table: name, n, A and B with intervals, their difference with its own, p, detectable."""
        i = self.points
        a, b = (
            (f"{100 * side.estimate:.1f}", f"{100 * side.low:.0f} to {100 * side.high:.0f}")
            for side in (self.a, self.b)
        )
        return [
            self.name, str(i.n), *a, *b, f"{i.estimate:+.1f}",
            f"{i.low:+.1f} to {i.high:+.1f}" if i.known else "too few", words.probability(self.p),
            "" if i.detectable is None else words.brief(i.detectable),
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict, scores as shares, the difference in percentage points."""
        i = self.points
        return {
            "name": self.name, "n": i.n, "a": self.a.estimate, "a_ci95": [self.a.low, self.a.high],
            "b": self.b.estimate, "b_ci95": [self.b.low, self.b.high], "points": i.estimate,
            "ci": [i.low, i.high] if i.known else None, "p": self.p,
            **({"p_is_bound": True} if stats.p_is_bound(self.p) else {}), "detectable": i.detectable,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A question that run B answered better or worse than run A: its ids and scores in both, and its source."""

    id: str
    id_b: str
    source: str
    a: float
    b: float

    @property
    def label(self) -> str:
        """Return the question's id, or both ids if they differ."""
        return self.id if self.id == self.id_b else f"{self.id} ({self.id_b})"


@dataclass(frozen=True)
class Cost:
    """Tokens or seconds per question: the means of runs A and B, and the change from A to B in per cent."""

    a: float
    b: float
    change: Interval

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        ends = [self.change.low, self.change.high] if self.change.known else None
        return {"a": self.a, "b": self.b, "change_percent": self.change.estimate, "ci95": ends}


@dataclass(frozen=True)
class Pairing:
    """The questions that both runs were asked.

    whole     all questions; None if no question was graded in both
    sources   one contrast per source of questions
    changes   questions whose scores differ, losses first
    tokens    tokens per question, None if unknown
    seconds   seconds per question, None if unknown
    alone     number of questions that only A, and that only B was asked
    ungraded  number of shared questions without a grade in A or B
    samples   number of graded samples of A and of B, over questions graded in both
    failed    number of samples of A and of B without a grade, over the shared questions
    """

    whole: Contrast | None
    sources: tuple[Contrast, ...]
    changes: tuple[Change, ...]
    tokens: Cost | None
    seconds: Cost | None
    alone: tuple[int, int]
    ungraded: int
    samples: tuple[int, int]
    failed: tuple[int, int]

    @property
    def shared(self) -> int:
        """Return the number of questions that both runs were asked."""
        return self.ungraded + (self.whole.difference.n if self.whole else 0)

    @property
    def lost(self) -> list[Change]:
        """Return the questions that B answered worse than A."""
        return [change for change in self.changes if change.b < change.a]

    @property
    def gained(self) -> list[Change]:
        """Return the questions that B answered better than A."""
        return [change for change in self.changes if change.b > change.a]

    @property
    def repeated(self) -> bool:
        """Whether a question was asked more than once."""
        return self.whole is not None and max(self.samples) > self.whole.difference.n

    def contrasts(self) -> list[Contrast]:
        """Return the contrast of all questions, and those of the sources if there are several."""
        return [*([self.whole] if self.whole else []), *(self.sources if len(self.sources) > 1 else ())]

    def tally(self) -> str:
        """Return how many questions changed in each direction, as a sentence."""
        assert self.whole is not None
        lost, gained, n = len(self.lost), len(self.gained), self.whole.difference.n
        same = n - lost - gained
        if self.repeated or self.whole.averaged:
            return f"{same} questions equally often right, {lost} less often in B, {gained} more often"
        right = round(self.whole.a.estimate * n) - lost
        return f"right in both: {right}, only in A: {lost}, only in B: {gained}, in neither: {same - right}"

    def costs(self) -> list[str]:
        """Return what questions cost in both runs as sentences."""
        known = {"tokens": self.tokens, "seconds": self.seconds}
        lines = [words.cost(name, cost.a, cost.b, cost.change) for name, cost in known.items() if cost is not None]
        if self.seconds is not None and self.seconds.change.known:
            i = self.seconds.change  # a fifth less time is a quarter more speed
            estimate, low, high = (100 * (100 / (100 + change) - 1) for change in (i.estimate, i.high, i.low))
            faster = replace(i, estimate=estimate, low=low, high=high, detectable=None)
            lines.append(words.speed("answers", faster, judge(faster)))
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {
            "whole": None if self.whole is None else self.whole.as_json(),
            "per_source": [contrast.as_json() for contrast in self.sources],
            "lost": [asdict(change) for change in self.lost], "gained": [asdict(change) for change in self.gained],
            "tokens": None if self.tokens is None else self.tokens.as_json(),
            "seconds": None if self.seconds is None else self.seconds.as_json(),
            "questions": {"both": self.shared, "only_a": self.alone[0], "only_b": self.alone[1],
                          "ungraded": self.ungraded},
            "samples": list(self.samples), "failed": list(self.failed),
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

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "a": self.a, "b": self.b, "kind": self.kind, "verdict": self.verdict, "design": self.design,
            "passes": self.passes, "fails": list(self.fails), "notes": list(self.notes),
            "findings": [finding.as_json() for finding in self.findings],
            **({} if self.pairs is None else {"questions": self.pairs.as_json()}),
            **({} if not self.differs else {"differs": {name: values for name, *values in self.differs}}),
        }  # fmt: skip


def compare(a: Measured, b: Measured, limits: Limits | None = None, differ: Sequence[str] = ()) -> Comparison:
    """Compare run B with run A; ``differ``: names of facts (``IDENTITY``) that may differ."""
    obstacles = mismatches(a, b, differ)
    if obstacles:
        return _incomparable(a, b, obstacles)
    kinds = {"bench": _speed, "eval": _graded, "vectors": _vectors}
    if a.run.kind not in kinds:
        return _incomparable(a, b, [f"runs of kind {a.run.kind} are not compared"])
    return kinds[a.run.kind](a, b, limits or LIMITS[a.run.kind])


def overall(verdicts: Sequence[str]) -> str:
    """Combine the verdicts of several findings to one."""
    if WORSE in verdicts and BETTER in verdicts:
        return MIXED
    return next((verdict for verdict in (WORSE, REFUSED, BETTER, UNCLEAR) if verdict in verdicts), SAME)


def mismatches(a: Measured, b: Measured, differ: Sequence[str] = ()) -> list[str]:
    """Return the reasons why A and B cannot be compared; a fact that one run lacks is none."""
    if a.run.kind != b.run.kind:
        return [f"{a.name} is a {a.run.kind} run, {b.name} a {b.run.kind} run"]
    reasons = [f"{one.name} has no rows" for one in (a, b) if not one.rows]
    if a.run.kind == "eval":
        return reasons
    reasons += [f"{one.name} is {one.run.status}" for one in (a, b) if one.run.status != "complete"]
    for name, keys in IDENTITY.items():
        one, other = a.run.fact(*keys), b.run.fact(*keys)
        if name not in differ and one is not None and other is not None and one != other:
            reasons.append(f"different {name}: {words.shortened(one)} and {words.shortened(other)}")
    return reasons


def _unknown(a: Measured, b: Measured) -> list[str]:
    names = [n for n, keys in IDENTITY.items() if a.run.fact(*keys) is None or b.run.fact(*keys) is None]
    return [f"not recorded whether both used the same {', '.join(names)}"] if names else []


def _incomparable(a: Measured, b: Measured, why: list[str]) -> Comparison:
    return Comparison(a.name, b.name, a.run.kind, INCOMPARABLE, notes=tuple(why), fails=tuple(why))


def _conclude(
    a: Measured,
    b: Measured,
    findings: Sequence[Finding],
    limits: Limits,
    design: str,
    notes: Sequence[str],
    **more: Any,
) -> Comparison:
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


# --- speed


@dataclass(frozen=True)
class Speeds:
    """Speeds of two runs compared: ``cells`` are the compared ones of A and B, by metric."""

    findings: tuple[Finding, ...]
    design: str
    cells: dict[str, tuple[Cells, Cells]]


def speeds(
    a: Rows, b: Rows, in_turn: bool, limits: Limits = LIMITS["bench"], names: tuple[str, str] = ("A", "B")
) -> Speeds:
    """Compare the speeds of two runs' rows at places where both did the same amount of work.

    ``in_turn``: whether repetitions were measured in turn. A metric that neither measured is left out; one with many
    warnings is refused.
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
    """Return place -> (amount of work, speeds by repetition) for the given columns, without rows that have warnings."""
    by_place: dict[Place, tuple[Any, dict[int, float]]] = {}
    for row in warnings.without(rows, column):
        value = row.get(column)
        if isinstance(value, (int, float)) and value > 0:
            entry = by_place.setdefault(place(row), (row.get(work), {}))
            entry[1][int(row.get("rep") or 0)] = float(value)
    return by_place


def common(a: Rows, b: Rows, column: str, work: str) -> tuple[Cells, Cells]:
    """Return the speeds at places that both runs measured with the same amount of work."""
    one, other = cells(a, column, work), cells(b, column, work)
    places = [at for at in sorted(one.keys() & other.keys()) if one[at][0] == other[at][0]]
    return {at: one[at][1] for at in places}, {at: other[at][1] for at in places}


def repetitions(side: Cells) -> list[int]:
    """Return all repetition numbers in order."""
    return sorted({rep for values in side.values() for rep in values})


def matrix(side: Cells, places: Sequence[Place], reps: Sequence[int]) -> np.ndarray:
    """Return log speeds (repetitions, places), NaN for a missing cell."""
    return np.array([[math.log(side[at][rep]) if rep in side[at] else math.nan for at in places] for rep in reps])


def _judged(one: Cells, other: Cells, in_turn: bool, confidence: float, margin: float) -> tuple[Interval, str, str]:
    """Return (change from A to B in per cent, design, verdict)."""
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
    """Return the speed at a place as every table has it: the median over repetitions."""
    return float(np.median(list(values.values())))


def _speed(a: Measured, b: Measured, limits: Limits) -> Comparison:
    group = a.run.fact("arms", "group")
    found = speeds(a.rows, b.rows, group is not None and group == b.run.fact("arms", "group"), limits)
    if not found.findings:
        return _incomparable(a, b, ["no depth was measured with the same number of tokens in both"])
    depths = tuple(
        (at[0], metric, _median(other[at]) / _median(one[at]))
        for metric, (one, other) in found.cells.items()
        for at in one
    )
    return _conclude(a, b, found.findings, limits, found.design, _unknown(a, b) + _notes(a, b, found), depths=depths)


def _notes(a: Measured, b: Measured, found: Speeds) -> list[str]:
    notes = []
    if found.design == "separate":
        notes.append(f"not measured in turn: differences up to {SEPARATE:g} % may be drift of the machine")
    if found.design == "single":
        walks = min(len(repetitions(side)) for sides in found.cells.values() for side in sides)
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
        if at not in found.cells.get(name, ({}, {}))[0]
    }  # fmt: skip
    if omitted:
        notes.append(f"{len(omitted)} depth(s) left out: not in both, with another number of tokens, or with warnings")
    return notes


# --- graded runs


def pair(a: Rows, b: Rows, confidence: float = 0.95) -> Pairing:
    """Pair the questions that runs A and B were both asked."""
    by = "question" if all(row.get("question") for row in (*a, *b)) else "id"
    one, other = answered(a, by), answered(b, by)
    both = [(one[key], other[key]) for key in one if key in other]
    graded = [(x, y) for x, y in both if x.score is not None and y.score is not None]
    sources: dict[str, list[tuple[Answered, Answered]]] = defaultdict(list)
    for x, y in graded:
        sources[x.source].append((x, y))
    changes = [
        Change(x.name, y.name, x.source, x.score or 0.0, y.score or 0.0) for x, y in graded if x.score != y.score
    ]
    return Pairing(
        whole=_contrast("all", graded, confidence) if graded else None,
        sources=tuple(_contrast(name, entries, confidence) for name, entries in sources.items()),
        changes=tuple(sorted(changes, key=lambda change: change.b - change.a)),
        tokens=_cost(graded, lambda question: question.tokens),
        seconds=_cost(graded, lambda question: question.seconds),
        alone=(len(one.keys() - other.keys()), len(other.keys() - one.keys())),
        ungraded=len(both) - len(graded),
        samples=(sum(x.graded for x, _ in graded), sum(y.graded for _, y in graded)),
        failed=(sum(x.ungraded for x, _ in both), sum(y.ungraded for _, y in both)),
    )


def _contrast(name: str, pairs: Sequence[tuple[Answered, Answered]], confidence: float) -> Contrast:
    a, b = (np.array([side.score for side in sides], np.float64) for sides in zip(*pairs, strict=True))
    difference = stats.graded_interval(a, b, confidence)
    p = stats.graded_p(a, b) if difference.p is None else difference.p
    averaged = not np.isin(np.r_[a, b], (0, 1)).all()
    return Contrast(name, stats.share_interval(a), stats.share_interval(b), difference, p, averaged)


def _cost(pairs: Iterable[tuple[Answered, Answered]], of: Callable[[Answered], float | None]) -> Cost | None:
    known = [(x, y) for one, other in pairs if (x := of(one) or 0) > 0 and (y := of(other) or 0) > 0]
    if not known:
        return None
    ratios = [math.log(y / x) for x, y in known]
    return Cost(fmean(x for x, _ in known), fmean(y for _, y in known), per_cent(stats.centre_interval(ratios)))


def _graded(a: Measured, b: Measured, limits: Limits) -> Comparison:
    pairs = pair(a.rows, b.rows, limits.confidence)
    whole = pairs.whole
    if whole is None:
        why = (
            f"none of {words.counted(pairs.shared, 'question')} has a grade in both"
            if pairs.shared
            else "no question in common"
        )
        return replace(_incomparable(a, b, [why]), pairs=pairs)
    i = whole.points
    finding = Finding("score", "points", i, judge(i, limits.margin), limits.margin, 100 * whole.a.estimate,
                      100 * whole.b.estimate, whole.averaged)  # fmt: skip
    notes = [f"{side.name} is {side.run.status}" for side in (a, b) if side.run.status != "complete"]
    notes += remarks(pairs, a.run.facts, b.run.facts)
    notes += [f"{side.name}: {note}" for side in (a, b) for note in thinking.notes(side.rows, side.run.facts)]
    if i.known and (i.low > 0 or i.high < 0) and whole.p >= 1 - limits.confidence:
        notes.append(f"a close call: the interval leaves zero out, the exact test (p = {whole.p:.2g}) would not decide")
    return _conclude(a, b, [finding], limits, "paired by question", notes, pairs=pairs,
                     differs=tuple(differences(a.run.facts, b.run.facts)))  # fmt: skip


def remarks(pairs: Pairing, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return sentences on what the pairing of runs with facts ``a`` and ``b`` left out."""
    sentences = []
    if (a.get("pack") or {}).get("digest") != (b.get("pack") or {}).get("digest"):
        sentences.append(f"different packs: {words.counted(pairs.shared, 'question')} in both")
    if any(pairs.alone):
        sentences.append(f"{sum(pairs.alone)} question(s) left out: not put to both ({pairs.alone[0]} only to A, "
                         f"{pairs.alone[1]} only to B)")  # fmt: skip
    if any(pairs.failed):
        left_out = f"; {words.counted(pairs.ungraded, 'question')} left out for it" if pairs.ungraded else ""
        sentences.append(f"samples without a grade (failed, stopped): {pairs.failed[0]} of A, {pairs.failed[1]} of B"
                         + left_out)  # fmt: skip
    return sentences


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, value in A, value in B) of facts that differ: pack, model, settings, epochs, engine, machine."""
    one, other = _facts(a), _facts(b)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, words.shortened(one.get(name)), words.shortened(other.get(name))) for name in names]


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that give a score its meaning, by their names for people."""
    pack, target = run.get("pack") or {}, run.get("target") or {}
    return {
        "pack": f"{pack.get('pack', '')} {pack.get('version', '')}".strip() or None,
        "pack digest": pack.get("digest"),
        "model": (run.get("model") or {}).get("name"),
        **(run.get("settings") or {}),
        **{f"engine's {name}": value for name, value in target.items() if name not in VOLATILE},
        "epochs": run.get("epochs"),
        "processor": (run.get("machine") or {}).get("cpu"),
        "commit": run.get("commit"),
    }


# --- vectors


def _vectors(a: Measured, b: Measured, limits: Limits) -> Comparison:
    one, other = ({str(r.get("id")): r for r in side.rows if _has_nll(r)} for side in (a, b))
    both = [i for i in one if i in other and one[i]["tokens"] == other[i]["tokens"]]
    if len(both) < 2:
        return _incomparable(a, b, ["fewer than two vectors have an NLL in both runs"])
    tokens = np.array([one[i]["tokens"] for i in both], np.float64)
    nll = [np.array([side[i]["nll"] for i in both], np.float64) for side in (one, other)]
    interval = stats.weighted_interval(nll[0] - nll[1], tokens, limits.confidence)
    one_ppl, other_ppl = (float(np.exp(values.sum() / tokens.sum())) for values in nll)
    change = per_cent(interval)
    finding = Finding(
        "perplexity (lower is better)", "%", change, judge(change, limits.margin), limits.margin, one_ppl, other_ppl
    )
    note = f"{len(both)} vectors, {int(tokens.sum())} tokens; mean NLL differs by {interval.estimate:+.5f}"
    return _conclude(a, b, [finding], limits, "paired by text", [*_unknown(a, b), note])


def _has_nll(row: Mapping[str, Any]) -> bool:
    return (
        isinstance(row.get("nll"), (int, float)) and isinstance(row.get("tokens"), (int, float)) and row["tokens"] > 0
    )
