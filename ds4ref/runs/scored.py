"""Graded runs, question by question: the score of a run, and the changes between two runs.

    pairs = pair(rows_a, rows_b)              rows of kind "eval" (docs/reference/reports.md), of the store or of a log
    verdict(pairs.whole, margin=1.0)          better, worse, same, unclear

The question is the independent unit, not the sample: the epochs of a question are averaged first. Samples without a
grade (failed, stopped) are left out on both sides and counted: they say nothing about the model. Questions are the same
if their digests are equal; rows without a digest are paired by id.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from . import speed, stats
from .speed import BETTER, SAME, WORSE
from .stats import Interval

CONFIDENCE = 0.95
MARGIN = 1.0
"""Percentage points below which a difference of scores counts as none."""
VOLATILE = ("name", "url", "file", "served")
"""Fields of an engine's identity that say where it ran, ignored when comparing which engine it was."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Answered:
    """One question in one run.

    score     mean over its graded samples, None if none is graded
    graded    number of graded samples
    ungraded  number of samples without a grade
    tokens    mean number of generated tokens, None if unknown
    seconds   mean duration, None if unknown
    guess     probability of a right answer by guessing, None if not stated
    depth     number of tokens between what is asked for and the answer, None if not stated
    difficulty  as the pack states it, "" if it does not
    """

    name: str
    source: str
    domain: str
    score: float | None
    graded: int
    ungraded: int
    tokens: float | None
    seconds: float | None
    guess: float | None = None
    depth: int | None = None
    difficulty: str = ""


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

    name    id of the question in A
    other   id of the question in B
    source  its source
    a, b    score in A and in B
    """

    name: str
    other: str
    source: str
    a: float
    b: float

    @property
    def label(self) -> str:
        """Return the question's id, or both ids if they differ."""
        return self.name if self.name == self.other else f"{self.name} ({self.other})"

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {"id": self.name, "id_b": self.other, "source": self.source, "a": self.a, "b": self.b}


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
    """The comparison of runs A and B over the questions that both were asked.

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

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {
            "whole": None if self.whole is None else self.whole.as_json(),
            "per_source": [contrast.as_json() for contrast in self.sources],
            "lost": [change.as_json() for change in self.lost],
            "gained": [change.as_json() for change in self.gained],
            "tokens": None if self.tokens is None else self.tokens.as_json(),
            "seconds": None if self.seconds is None else self.seconds.as_json(),
            "questions": {"both": self.shared, "only_a": self.alone[0], "only_b": self.alone[1],
                          "ungraded": self.ungraded},
            "samples": list(self.samples), "failed": list(self.failed),
        }  # fmt: skip

    @property
    def lost(self) -> list[Change]:
        """Return the questions that B answered worse than A."""
        return [change for change in self.changes if change.b < change.a]

    @property
    def gained(self) -> list[Change]:
        """Return the questions that B answered better than A."""
        return [change for change in self.changes if change.b > change.a]


# ------------------------------------------------------------------------------------------------------- one run


def score_of(row: Mapping[str, Any]) -> float | None:
    """Return the score of one sample, 0 to 1; None if the sample was not graded."""
    if row.get("status", "done") != "done":
        return None
    if row.get("outcome") is not None:
        return float(row["outcome"] == "right")
    score = row.get("score")
    return float(score) if isinstance(score, (int, float)) and math.isfinite(score) else None


def answered(rows: Rows, by: str = "id") -> dict[str, Answered]:
    """Group the rows of a run into questions by ``by`` ("id" or "question"), in order of first appearance."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row.get(by))].append(row)
    return {key: _answered(entries) for key, entries in groups.items()}


def _answered(rows: Rows) -> Answered:
    done = [row for row in rows if score_of(row) is not None]
    scores = [score for row in done if (score := score_of(row)) is not None]

    def mean(name: str) -> float | None:
        known = [float(row[name]) for row in done if isinstance(row.get(name), (int, float))]
        return fmean(known) if known else None

    first = rows[0]
    source = str(first.get("source") or first.get("group") or "all")
    return Answered(
        str(first.get("id")), source, str(first.get("domain") or ""), fmean(scores) if scores else None,
        len(scores), len(rows) - len(scores), mean("tokens"), mean("seconds"), first.get("guess"), first.get("depth"),
        str(first.get("difficulty") or ""),
    )  # fmt: skip


def share(questions: Iterable[Answered]) -> Interval | None:
    """Return the mean score over ``questions`` with its 95 % interval, None if none is graded."""
    scores = [q.score for q in questions if q.score is not None]
    return stats.share_interval(scores) if scores else None


def shares(questions: Iterable[Answered], name: Callable[[Answered], str]) -> dict[str, Interval]:
    """Return the mean score of each group of questions, grouped by ``name``, in order of first appearance."""
    groups: dict[str, list[Answered]] = defaultdict(list)
    for question in questions:
        groups[name(question)].append(question)
    return {key: interval for key, group in groups.items() if (interval := share(group)) is not None}


def guessed(questions: Iterable[Answered]) -> float | None:
    """Return the mean score of guessing over graded ``questions``, None unless all of them state it."""
    guesses = [q.guess for q in questions if q.score is not None]
    known = [guess for guess in guesses if guess is not None]
    return fmean(known) if known and len(known) == len(guesses) else None


def rate(rows: Rows) -> float | None:
    """Return the decode rate of a run's graded samples in tokens per second (``rate_of``)."""
    return rate_of(
        (row.get("tokens"), row.get("ttft"), row.get("seconds")) for row in rows if score_of(row) is not None
    )


def rate_of(samples: Iterable[tuple[float | None, float | None, float | None]]) -> float | None:
    """Return the decode rate in tokens per second, from (tokens, seconds to first, seconds to last) of each sample.

    It is the number of tokens after the first over the time after the first, both summed over samples; None if unknown.
    """
    tokens = seconds = 0.0
    for count, first, last in samples:
        if count and count > 1 and first is not None and last and last > first:
            tokens, seconds = tokens + count - 1, seconds + last - first
    return tokens / seconds if seconds > 0 else None


# ------------------------------------------------------------------------------------------------------ two runs


def pair(a: Rows, b: Rows, confidence: float = CONFIDENCE) -> Pairing:
    """Compare run B with run A over the questions that both were asked."""
    by = "question" if all(row.get("question") for row in (*a, *b)) else "id"
    one, other = answered(a, by), answered(b, by)
    both = [(one[key], other[key]) for key in one if key in other]
    graded = [(x, y) for x, y in both if x.score is not None and y.score is not None]
    sources: dict[str, list[tuple[Answered, Answered]]] = defaultdict(list)
    for x, y in graded:
        sources[x.source].append((x, y))
    return Pairing(
        whole=_contrast("all", graded, confidence) if graded else None,
        sources=tuple(_contrast(name, entries, confidence) for name, entries in sources.items()),
        changes=tuple(sorted(_changes(graded), key=lambda change: change.b - change.a)),
        tokens=_cost([(x.tokens, y.tokens) for x, y in graded]),
        seconds=_cost([(x.seconds, y.seconds) for x, y in graded]),
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


def _changes(pairs: Iterable[tuple[Answered, Answered]]) -> Iterable[Change]:
    for x, y in pairs:
        if x.score is not None and y.score is not None and x.score != y.score:
            yield Change(x.name, y.name, x.source, x.score, y.score)


def _cost(pairs: Iterable[tuple[float | None, float | None]]) -> Cost | None:
    known = [(x, y) for x, y in pairs if x and y and x > 0 and y > 0]
    if not known:
        return None
    ratios = [math.log(y / x) for x, y in known]
    return Cost(fmean(x for x, _ in known), fmean(y for _, y in known), speed.per_cent(stats.centre_interval(ratios)))


# ---------------------------------------------------------------------------------------------------- in words


def verdict(contrast: Contrast, margin: float = MARGIN) -> str:
    """Return "better", "worse", "same" or "unclear" for B relative to A; ``margin`` is in percentage points.

    Better or worse: the interval lies on one side of zero and the difference is at least the margin; same: the whole
    interval lies within the margin.
    """
    return speed.judge(contrast.points, margin)


def sentence(contrast: Contrast, margin: float = MARGIN) -> str:
    """Return the verdict in words: "B is worse by 11 points (3.4 to 19)"."""
    i, judged = contrast.points, verdict(contrast, margin)
    if not i.known:
        return f"no verdict: {counted(i.n, 'question')}, and an interval needs {stats.LEAST_GRADED}"
    if judged == SAME:
        return f"the same within {margin:g} {_unit(margin)}"
    size, ends = abs(i.estimate), (i.low, i.high) if i.estimate > 0 else (-i.high, -i.low)
    span = f"{brief(size)} {_unit(size)} ({brief(ends[0])} to {brief(ends[1])})"
    if judged in (BETTER, WORSE):
        return f"B is {judged} by {span}"
    if ends[0] > 0:
        word = "higher" if i.estimate > 0 else "lower"
        return f"B is {word} by {span}, less than the {margin:g} {_unit(margin)} that counts"
    borne = ", if many questions bore it" if contrast.averaged else ""  # twice as large if few do (eval.md)
    return f"no difference found; one of {brief(i.detectable or math.nan)} points would have been{borne}"


def close_call(contrast: Contrast, confidence: float = CONFIDENCE) -> str | None:
    """Return a remark if the interval and the exact test disagree, else None.

    The exact test is the more conservative one.
    """
    i = contrast.difference
    if i.known and (i.low > 0 or i.high < 0) and contrast.p >= 1 - confidence:
        return f"a close call: the interval leaves zero out, the exact test (p = {contrast.p:.2g}) would not decide"
    return None


def brief(points: float) -> str:
    """Format percentage points with one decimal below ten and none above."""
    if abs(points) < 0.095:
        return f"{points:.1g}"
    return f"{points:.0f}" if abs(points) >= 9.95 else f"{points:.1f}".removesuffix(".0")


def _unit(points: float) -> str:
    return "point" if brief(points) == "1" else "points"


def remarks(pairs: Pairing, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on what a comparison left out, and on other reasons for caution."""
    sentences = []
    if len({(one.get("pack") or {}).get("digest") for one in facts}) > 1:
        sentences.append(f"different packs: {counted(pairs.shared, 'question')} in both")
    if any(pairs.alone):
        sentences.append(f"{sum(pairs.alone)} question(s) left out: not put to both ({pairs.alone[0]} only to A, "
                     f"{pairs.alone[1]} only to B)")  # fmt: skip
    if any(pairs.failed):
        ungraded = f"samples without a grade (failed, stopped): {pairs.failed[0]} of A, {pairs.failed[1]} of B"
        left_out = f"; {counted(pairs.ungraded, 'question')} left out for it" if pairs.ungraded else ""
        sentences.append(ungraded + left_out)
    return sentences


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural if needed: "1 question", "2 questions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, value in A, value in B) of facts that differ: pack, model, settings, epochs, engine, machine."""
    one, other = _facts(a), _facts(b)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, _short(one.get(name)), _short(other.get(name))) for name in names]


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
        "grader": run.get("grader", "ours"),
        "processor": (run.get("machine") or {}).get("cpu"),
        "commit": run.get("commit"),
    }


def _short(value: Any) -> str:
    if value is None:
        return "-"
    text = " ".join(str(value).split())
    head, _, tail = text.rpartition(":")
    if len(tail) >= 40 and all(c in "0123456789abcdef+" for c in tail):
        return f"{head}:{tail[:12]}".removeprefix(":")
    return text if len(text) <= 60 else f"{text[:57]}..."
