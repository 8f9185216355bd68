"""Compute scores with intervals, overall and per source, and costs.

The question is the independent unit, not the sample: epochs of one question are averaged first, so that asking 93
questions ten times still counts as 93. With one epoch the interval is Wilson's; with several, the interval uses the
spread of the questions' averages (``runs.stats.share_interval``). A bootstrap over questions covers too little at these
sizes (docs/reference/reports.md). Failed and stopped samples do not count in any score.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4ref.runs import scored
from ds4ref.runs.stats import Interval, share_interval

from .log import Log, Sample
from .packs import Question


@dataclass(frozen=True)
class Score:
    """Score of some questions.

    name      "all", a source, a depth or a difficulty
    interval  share of right answers with its interval; None without a graded question
    samples   number of graded samples
    outcomes  number of samples by outcome
    guess     score of guessing, None if it is not stated for every question
    """

    name: str
    interval: Interval | None
    samples: int
    outcomes: Mapping[str, int]
    guess: float | None = None

    @property
    def share(self) -> float:
        """Return the share of right answers, as a mean over questions; NaN without any."""
        return math.nan if self.interval is None else self.interval.estimate

    def said(self) -> str:
        """Format the score as ``71.0 % (61.0 to 79.2, n = 93)``."""
        found = self.interval
        if found is None:
            return "no answer graded"
        return f"{100 * found.estimate:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f}, n = {found.n})"

    def to_json(self) -> dict[str, Any]:
        """Return the score as plain data; the 95 % interval as two numbers."""
        found = self.interval
        return {
            "score": None if found is None else found.estimate,
            "ci95": None if found is None else [found.low, found.high],
            "n": 0 if found is None else found.n,
            "samples": self.samples,
            **{name: self.outcomes.get(name, 0) for name in ("right", "wrong", "ambiguous", "missing")},
            **({} if self.guess is None else {"guess": self.guess}),
        }


@dataclass(frozen=True)
class Summary:
    """Scores and costs of a log.

    whole      score of all samples
    sources    scores by source
    depths     scores by the depth of what is asked for, of the questions that state it
    failed     number of samples that failed, which are in no score
    stopped    number of samples that were stopped, which are in no score
    exhausted  number of graded samples that hit the token limit, or whose thinking had to be closed
    passes     by k: share of questions with a right answer among k samples; empty with one epoch
    difficulties   scores by difficulty
    tokens     mean generated tokens of a sample; None if not counted
    median     median of the same
    price      generated tokens of all samples for each right one; None if not counted, or none is right
    reasoning  mean thinking tokens of a sample; None if not counted
    seconds    mean seconds of a sample
    rate       tokens per second while generating; None if not counted
    """

    whole: Score
    sources: tuple[Score, ...]
    failed: int
    stopped: int
    exhausted: int
    passes: Mapping[int, float] = field(default_factory=dict)
    tokens: float | None = None
    reasoning: float | None = None
    seconds: float | None = None
    rate: float | None = None
    depths: tuple[Score, ...] = ()
    difficulties: tuple[Score, ...] = ()
    median: float | None = None
    price: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return scores and costs as plain data."""
        return {
            **self.whole.to_json(), "per_source": {s.name: s.to_json() for s in self.sources},
            **({"per_depth": {s.name: s.to_json() for s in self.depths}} if self.depths else {}),
            "per_difficulty": {s.name: s.to_json() for s in self.difficulties},
            "failed": self.failed, "stopped": self.stopped, "exhausted": self.exhausted,
            "pass_at": {str(k): v for k, v in self.passes.items()},
            "tokens_per_sample": self.tokens, "median_tokens": self.median, "tokens_per_right_answer": self.price,
            "reasoning_tokens_per_sample": self.reasoning,
            "seconds_per_sample": self.seconds, "tokens_per_second": self.rate,
        }  # fmt: skip


def summary(log: Log) -> Summary:
    """Return scores and costs of a log."""
    return summarize(log.questions, log.samples)


def summarize(questions: Mapping[str, Question], samples: Iterable[Sample]) -> Summary:
    """Return scores and costs of ``samples``, one for each key; ``questions`` are by id."""
    places = {name: place for place, name in enumerate(questions)}
    every = sorted(samples, key=lambda sample: (places[sample.id], sample.epoch))  # however they were made
    done = [sample for sample in every if sample.status == "done" and sample.grade is not None]
    epochs = max((sample.epoch for sample in done), default=1)
    deep = sorted((sample for sample in done if questions[sample.id].depth), key=lambda s: questions[s.id].depth)
    counted = [sample for sample in done if sample.tokens is not None]
    tokens, right = [sample.tokens or 0 for sample in counted], sum(sample.right for sample in counted)
    return Summary(
        whole=score("all", done, questions),
        sources=tuple(_grouped(done, questions, lambda q: q.source)),
        depths=tuple(_grouped(deep, questions, lambda q: f"{q.depth:,} tokens back")),
        difficulties=tuple(_grouped(done, questions, lambda q: q.difficulty or "not stated")),
        median=float(np.median(tokens)) if counted else None,
        price=sum(tokens) / right if right else None,
        failed=sum(sample.status == "failed" for sample in every),
        stopped=sum(sample.status == "stopped" for sample in every),
        exhausted=sum(is_exhausted(sample) for sample in done),
        passes={k: v for k in _ladder(epochs) if (v := pass_at(done, k)) is not None} if epochs > 1 else {},
        tokens=_mean(sample.tokens for sample in done),
        reasoning=_mean(sample.reasoning_tokens for sample in done),
        seconds=_mean(sample.seconds for sample in done),
        rate=rate_of(done),
    )


def score(name: str, done: Sequence[Sample], questions: Mapping[str, Question]) -> Score:
    """Return the share of right answers in which every question counts once."""
    outcomes: Counter[str] = Counter()
    right: dict[str, list[float]] = defaultdict(list)
    for sample in done:
        if sample.grade is not None:
            outcomes[sample.grade.outcome] += 1
            right[sample.id].append(float(sample.right))
    means = [float(np.mean(values)) for values in right.values()]
    guesses = [questions[name].chance for name in right]
    guess = float(np.mean(guesses)) if guesses and all(guesses) else None
    return Score(name, share_interval(means) if means else None, sum(outcomes.values()), outcomes, guess)


def is_exhausted(sample: Sample) -> bool:
    """Return whether the answer hit the token limit or had its thinking closed."""
    return sample.finish == "length" or sample.close in ("soft", "hard", "open")


def by_question(done: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Group samples by question id, in the order of their epochs."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in sorted(done, key=lambda sample: sample.epoch):
        found[sample.id].append(sample)
    return dict(found)


def pass_at(done: Iterable[Sample], k: int) -> float | None:
    """Return the unbiased estimate of pass@k; None unless every question has k samples.

    It is the mean over questions of 1 - C(n - right, k) / C(n, k), n being the question's number of samples.
    """
    shares = []
    for samples in by_question(done).values():
        n, right = len(samples), sum(sample.right for sample in samples)
        if n < k:
            return None
        shares.append(1 - math.comb(n - right, k) / math.comb(n, k))
    return float(np.mean(shares)) if shares else None


def _ladder(epochs: int) -> list[int]:
    """List 1, 2, 4 ... and the number of epochs."""
    return sorted({2**i for i in range(20) if 2**i <= epochs} | {epochs})


def _grouped(done: Sequence[Sample], questions: Mapping[str, Question], name: Callable[[Question], str]) -> list[Score]:
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in done:
        groups[name(questions[sample.id])].append(sample)
    return [score(key, samples, questions) for key, samples in groups.items()]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rate_of(done: Iterable[Sample]) -> float | None:
    """Return the tokens per second of a single answer, estimated over samples."""
    return scored.rate_of((sample.tokens, sample.ttft, sample.seconds) for sample in done)
