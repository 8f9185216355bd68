"""Scores of a graded run, that is, of a run of ds4-eval (``pairs`` compares two of them).

Rows have the format of kind "eval" (docs/reference/reports.md), whether from the run store or from a log; each is one
sample, an answer to a question in one epoch. Statistically the questions are independent, not the samples, so the
samples of a question are averaged first. Samples without a grade (failed, stopped) say nothing about the model and are
not counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from . import stats
from .stats import Interval

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Answered:
    """One question of a run, with its samples combined.

    name        the question's id
    source      where the question comes from, such as the name of a benchmark
    domain      subject of the question, "" if not stated
    score       mean over its graded samples, 0 to 1; None if none is graded
    graded      number of graded samples
    ungraded    number of samples without a grade
    tokens      mean number of generated tokens, None if unknown
    seconds     mean duration, None if unknown
    guess       probability of a right answer by guessing, None if not stated
    depth       number of tokens between the information asked for and the answer, None if not stated
    difficulty  as the question pack states it, "" if it does not
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


def score_of(row: Mapping[str, Any]) -> float | None:
    """Return the score of one sample, 0 to 1; None if the sample was not graded."""
    if row.get("status", "done") != "done":
        return None
    if row.get("outcome") is not None:
        return float(row["outcome"] == "right")
    score = row.get("score")
    return float(score) if isinstance(score, (int, float)) and math.isfinite(score) else None


def answered(rows: Rows, by: str = "id") -> dict[str, Answered]:
    """Group the rows of a run into questions, in order of first appearance.

    ``by`` is the field that identifies a question and becomes the key: "id", or "question" (the digest of its text).
    """
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
    """Return the mean score of each group of questions with its 95 % interval, in order of first appearance.

    ``name`` returns the group of a question. Groups without a graded question are left out.
    """
    groups: dict[str, list[Answered]] = defaultdict(list)
    for question in questions:
        groups[name(question)].append(question)
    return {key: interval for key, group in groups.items() if (interval := share(group)) is not None}


def guessed(questions: Iterable[Answered]) -> float | None:
    """Return the mean score that guessing would reach on the graded ``questions``, None unless all of them state it."""
    guesses = [q.guess for q in questions if q.score is not None]
    known = [guess for guess in guesses if guess is not None]
    return fmean(known) if known and len(known) == len(guesses) else None


def rate(rows: Rows) -> float | None:
    """Return the decode rate over a run's graded samples, in tokens per second; None if unknown."""
    return rate_of(
        (row.get("tokens"), row.get("ttft"), row.get("seconds")) for row in rows if score_of(row) is not None
    )


def rate_of(samples: Iterable[tuple[float | None, float | None, float | None]]) -> float | None:
    """Return the decode rate in tokens per second; None if unknown.

    ``samples`` are (number of tokens, seconds to the first token, seconds to the last). The rate is the number of
    tokens after the first divided by the time after the first, both summed over the samples.
    """
    tokens = seconds = 0.0
    for count, first, last in samples:
        if count and count > 1 and first is not None and last and last > first:
            tokens, seconds = tokens + count - 1, seconds + last - first
    return tokens / seconds if seconds > 0 else None
