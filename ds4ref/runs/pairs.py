"""Compares two graded runs on the questions that both were asked: scores, changes, and what answers cost.

Questions are paired by digest, or by id if a row has no digest. The samples of a question (one per epoch) are averaged
first. Samples without a grade (failed, stopped) are left out and counted.
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
    p           two-sided p-value of "no difference", known for any number of questions
    averaged    whether some questions have scores between right and wrong, for example averages of epochs
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
        """Return the cells of a table row.

        They are: name, number of questions, score and interval of A, the same of B, difference, its interval, p-value,
        smallest difference that could be detected.
        """
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
    """A question that run B answered better or worse than run A.

    id, id_b   the question's id in A and in B
    source     where the question comes from, such as the name of a benchmark
    a, b       its scores in A and in B, 0 to 1
    """

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
    """Tokens or seconds per question: the means ``a`` and ``b`` of runs A and B, and the typical change in per cent."""

    a: float
    b: float
    change: Interval

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a dict of numbers and strings, for JSON."""
        ends = [self.change.low, self.change.high] if self.change.known else None
        return {"a": self.a, "b": self.b, "change_percent": self.change.estimate, "ci95": ends}


@dataclass(frozen=True)
class Pairing:
    """The result of comparing two graded runs question by question.

    whole     scores over all questions; None if no question was graded in both runs
    sources   scores over the questions of each source
    changes   questions whose scores differ, those that B answered worse first
    tokens    tokens per question, None if unknown
    seconds   seconds per question, None if unknown
    alone     (number of questions that only A was asked, number that only B was asked)
    ungraded  number of questions that both were asked and that have no grade in A or B
    samples   (number of graded samples of A, of B), over the questions graded in both
    failed    (number of samples without a grade of A, of B), over the questions that both were asked
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
        """Return whether a question was asked more than once, in several epochs."""
        return self.whole is not None and max(self.samples) > self.whole.difference.n

    def contrasts(self) -> list[Contrast]:
        """Return the scores over all questions and, if there are several sources, over the questions of each."""
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
        """Return sentences that compare the tokens and the seconds per question."""
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
    """Compare the rows ``a`` and ``b`` of two graded runs on the questions that both were asked."""
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
    """Return sentences on what was left out of the comparison of two runs, whose metadata are ``a`` and ``b``."""
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
