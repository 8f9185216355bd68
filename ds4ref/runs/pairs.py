"""Questions that two graded runs were both asked: scores, what changed, and what answers cost.

Questions are paired by digest or else by id: epochs are averaged first, and samples without a grade (failed, stopped)
are left out on both sides and counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from . import stats, words
from .scored import Answered, Rows, answered
from .stats import Interval, judge, per_cent


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
        """Return the comparison as a dict of numbers and strings, for JSON."""
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
