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
from typing import Any

import numpy as np

from ds4ref.runs import scored
from ds4ref.runs.stats import share_interval

from .log import Log, Sample
from .packs import Question


def score_text(score: Mapping[str, Any]) -> str:
    """Format a score as ``71.0 % (61.0 to 79.2, n = 93)``."""
    if score["score"] is None:
        return "no answer graded"
    low, high = score["ci95"]
    return f"{100 * score['score']:.1f} % ({100 * low:.1f} to {100 * high:.1f}, n = {score['n']})"


def summary(log: Log) -> dict[str, Any]:
    """Return scores and costs of a log."""
    return summarize(log.questions, log.samples)


def summarize(questions: Mapping[str, Question], samples: Iterable[Sample]) -> dict[str, Any]:
    """Return scores and costs of ``samples``, at most one for each key, as plain data; ``questions`` maps ids to
    questions.

    score, ci95, n, samples, right, wrong, ambiguous, missing, guess    of all samples (``score``)
    per_source, per_depth, per_difficulty    the same for groups of questions; depths only for questions that state one
    failed, stopped   number of failed and of stopped samples, which count in no score
    exhausted         number of graded samples that hit the token limit, or whose thinking had to be ended
    pass_at           for each k the share of questions with a right answer among k samples; empty with one epoch
    tokens_per_sample, median_tokens, tokens_per_right_answer, reasoning_tokens_per_sample    None if not counted
    seconds_per_sample, tokens_per_second    the speed of a single answer; None if not counted
    """
    places = {name: place for place, name in enumerate(questions)}
    every = sorted(samples, key=lambda sample: (places[sample.id], sample.epoch))  # in whatever order they were asked
    done = [sample for sample in every if sample.status == "done" and sample.grade is not None]
    epochs = max((sample.epoch for sample in done), default=1)
    ladder = sorted({2**i for i in range(20) if 2**i <= epochs} | {epochs}) if epochs > 1 else []
    deep = sorted((sample for sample in done if questions[sample.id].depth), key=lambda s: questions[s.id].depth)
    depths = _grouped(deep, questions, lambda q: f"{q.depth:,} tokens back")
    counted = [sample for sample in done if sample.tokens is not None]
    tokens, right = [sample.tokens or 0 for sample in counted], sum(sample.right for sample in counted)
    return {
        **score(done, questions),
        "per_source": _grouped(done, questions, lambda q: q.source),
        **({"per_depth": depths} if depths else {}),
        "per_difficulty": _grouped(done, questions, lambda q: q.difficulty or "not stated"),
        "failed": sum(sample.status == "failed" for sample in every),
        "stopped": sum(sample.status == "stopped" for sample in every),
        "exhausted": sum(map(is_exhausted, done)),
        "pass_at": {str(k): share for k in ladder if (share := pass_at(done, k)) is not None},
        "tokens_per_sample": _mean(tokens),
        "median_tokens": float(np.median(tokens)) if tokens else None,
        "tokens_per_right_answer": sum(tokens) / right if right else None,
        "reasoning_tokens_per_sample": _mean(s.reasoning_tokens for s in done),
        "seconds_per_sample": _mean(sample.seconds for sample in done),
        "tokens_per_second": scored.rate_of((sample.tokens, sample.ttft, sample.seconds) for sample in done),
    }


def score(done: Sequence[Sample], questions: Mapping[str, Question]) -> dict[str, Any]:
    """Return the share of right answers among the graded samples ``done``, in which every question counts once, and the
    number of samples with each outcome.

    ``ci95`` (95 % interval) is None without a graded question; ``guess``, the score expected from guessing, is present
    if all questions state it.
    """
    outcomes = Counter(sample.grade.outcome for sample in done if sample.grade is not None)
    answers = by_question(done)
    means = [float(np.mean([sample.right for sample in samples])) for samples in answers.values()]
    interval = share_interval(means) if means else None
    guesses = [questions[name].chance for name in answers]
    return {
        "score": None if interval is None else interval.estimate,
        "ci95": None if interval is None else [interval.low, interval.high],
        "n": len(means),
        "samples": outcomes.total(),
        **{name: outcomes[name] for name in ("right", "wrong", "ambiguous", "missing")},
        **({"guess": float(np.mean(guesses))} if guesses and all(guesses) else {}),
    }


def is_exhausted(sample: Sample) -> bool:
    """Return whether the answer hit the token limit, or its thinking had to be ended or did not end."""
    return sample.finish == "length" or sample.close in ("soft", "hard", "open")


def by_question(done: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Group samples by question id, in the order of their epochs."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in sorted(done, key=lambda sample: sample.epoch):
        groups[sample.id].append(sample)
    return dict(groups)


def pass_at(done: Iterable[Sample], k: int) -> float | None:
    """Return the unbiased estimate of pass@k, the share of questions with a right answer among k samples; None unless
    every question has k samples.

    It is the mean over questions of 1 - C(n - right, k) / C(n, k), n being the question's number of samples.
    """
    shares = []
    for samples in by_question(done).values():
        n, right = len(samples), sum(sample.right for sample in samples)
        if n < k:
            return None
        shares.append(1 - math.comb(n - right, k) / math.comb(n, k))
    return float(np.mean(shares)) if shares else None


def _grouped(
    done: Sequence[Sample], questions: Mapping[str, Question], name: Callable[[Question], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in done:
        groups[name(questions[sample.id])].append(sample)
    return {key: score(samples, questions) for key, samples in groups.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
