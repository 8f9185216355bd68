"""Compute scores with intervals, overall and per source and domain, and costs.

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

    name      "all", a source or a domain
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
    domains    scores by domain
    depths     scores by the depth of what is asked for, of the questions that state it
    ds4        score of the same answers by ds4's own grader
    failed     number of samples that failed, which are in no score
    stopped    number of samples that were stopped, which are in no score
    exhausted  number of graded samples that hit the token limit, or whose thinking had to be closed
    passes     by k: share of questions with a right answer among k samples; empty with one epoch
    majority   by k: share of questions whose most frequent answer of the first k is right; empty with one epoch
    difficulties   scores by difficulty
    lengths    scores of the shorter and of the longer half of the answers, by tokens
    tokens     mean generated tokens of a sample; None if not counted
    median     median of the same
    price      generated tokens of all samples for each right one; None if not counted, or none is right
    reasoning  mean thinking tokens of a sample; None if not counted
    seconds    mean seconds of a sample
    rate       tokens per second while generating; None if not counted
    """

    whole: Score
    sources: tuple[Score, ...]
    domains: tuple[Score, ...]
    ds4: Score
    failed: int
    stopped: int
    exhausted: int
    passes: Mapping[int, float] = field(default_factory=dict)
    majority: Mapping[int, float] = field(default_factory=dict)
    tokens: float | None = None
    reasoning: float | None = None
    seconds: float | None = None
    rate: float | None = None
    depths: tuple[Score, ...] = ()
    difficulties: tuple[Score, ...] = ()
    lengths: tuple[Score, ...] = ()
    median: float | None = None
    price: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return scores and costs as plain data."""
        return {
            **self.whole.to_json(), "per_source": {s.name: s.to_json() for s in self.sources},
            "per_domain": {s.name: s.to_json() for s in self.domains},
            **({"per_depth": {s.name: s.to_json() for s in self.depths}} if self.depths else {}),
            "per_difficulty": {s.name: s.to_json() for s in self.difficulties},
            "per_length": {s.name: s.to_json() for s in self.lengths},
            "ds4_grader": self.ds4.to_json(),
            "failed": self.failed, "stopped": self.stopped, "exhausted": self.exhausted,
            "pass_at": {str(k): v for k, v in self.passes.items()},
            "majority_of": {str(k): v for k, v in self.majority.items()},
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
    middle = float(np.median(tokens)) if counted else None
    return Summary(
        whole=score("all", done, questions=questions),
        sources=tuple(_grouped(done, questions, lambda q: q.source)),
        domains=tuple(_grouped(done, questions, lambda q: q.domain.partition("/")[0])),
        depths=tuple(_grouped(deep, questions, lambda q: f"{q.depth:,} tokens back")),
        difficulties=tuple(_grouped(done, questions, lambda q: q.difficulty or "not stated")),
        lengths=_halves(counted, middle, questions) if middle is not None else (),
        median=middle,
        price=sum(tokens) / right if right else None,
        ds4=score("ds4's grader", done, ds4=True),
        failed=sum(sample.status == "failed" for sample in every),
        stopped=sum(sample.status == "stopped" for sample in every),
        exhausted=sum(is_exhausted(sample) for sample in done),
        passes={k: v for k in _ladder(epochs) if (v := pass_at(done, k)) is not None} if epochs > 1 else {},
        majority={k: v for k in _ladder(epochs) if k > 2 and (v := majority_of(done, k)) is not None},
        tokens=_mean(sample.tokens for sample in done),
        reasoning=_mean(sample.reasoning_tokens for sample in done),
        seconds=_mean(sample.seconds for sample in done),
        rate=rate_of(done),
    )


def score(
    name: str, done: Sequence[Sample], ds4: bool = False, questions: Mapping[str, Question] | None = None
) -> Score:
    """Return the share of right answers in which every question counts once; ``ds4``: by ds4's grades.

    ``questions`` by id are where the score of guessing comes from.
    """
    outcomes: Counter[str] = Counter()
    right: dict[str, list[float]] = defaultdict(list)
    for sample in done:
        found = sample.ds4 if ds4 else sample.grade
        if found is not None:
            outcomes[found.outcome] += 1
            right[sample.id].append(float(found.outcome == "right"))
    means = [float(np.mean(values)) for values in right.values()]
    guesses = [questions[name].chance for name in right] if questions else []
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


def majority_of(done: Iterable[Sample], k: int) -> float | None:
    """Return the share of questions whose most frequent answer among the first k is right; None unless each has k.

    Ties count by their share; ambiguous and missing answers have no vote.
    """
    shares = []
    for samples in by_question(done).values():
        if len(samples) < k:
            return None
        votes: Counter[tuple[bool, str]] = Counter()
        for sample in samples[:k]:
            if sample.grade is not None and sample.grade.outcome in ("right", "wrong"):
                # All right answers are the same vote; a letter stands for the choice that was shown at it.
                right = sample.right
                votes[right, "" if right else _meant(sample)] += 1
        most = max(votes.values(), default=0)
        best = [right for (right, _), count in votes.items() if count == most]
        shares.append(sum(best) / len(best) if best else 0.0)
    return float(np.mean(shares)) if shares else None


def _meant(sample: Sample) -> str:
    given = sample.grade.given if sample.grade else ""
    if sample.order and len(given) == 1 and given.isalpha():
        place = ord(given.upper()) - ord("A")
        return str(sample.order[place]) if 0 <= place < len(sample.order) else given
    return given


def _ladder(epochs: int) -> list[int]:
    """List 1, 2, 4 ... and the number of epochs."""
    return sorted({2**i for i in range(20) if 2**i <= epochs} | {epochs})


def _grouped(done: Sequence[Sample], questions: Mapping[str, Question], name: Callable[[Question], str]) -> list[Score]:
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in done:
        groups[name(questions[sample.id])].append(sample)
    return [score(key, samples, questions=questions) for key, samples in groups.items()]


def _halves(counted: Sequence[Sample], middle: float, questions: Mapping[str, Question]) -> tuple[Score, ...]:
    """Return the scores of the answers up to ``middle`` tokens and of the longer ones; none if one side is empty."""
    short = [sample for sample in counted if (sample.tokens or 0) <= middle]
    if len(short) == len(counted):
        return ()
    long = [sample for sample in counted if (sample.tokens or 0) > middle]
    names = (f"up to {middle:,.0f} tokens", "longer answers")
    return tuple(score(name, side, questions=questions) for name, side in zip(names, (short, long), strict=True))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rate_of(done: Iterable[Sample]) -> float | None:
    """Return the tokens per second of a single answer, estimated over samples."""
    return scored.rate_of((sample.tokens, sample.ttft, sample.seconds) for sample in done)
