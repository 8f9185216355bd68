"""Metrics that steering should change: one number per prompt, computed without grading answers.

    words     logarithm of 1 + the number of words of the greedy answer
    logprob   log probability per token of one given continuation, minus that of another

Differences of both are in nats, as is the cost, the loss on a text. An effect of one nat is an answer 2.7 times as
long, or a continuation that is 2.7 times as likely per token, relative to the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..engine import Engine
    from ..session.session import Session

Metric = Callable[["Engine", Sequence[int]], float]
"""Function of an engine and a prompt (token ids) that returns the number which steering should change."""
BLOCK = 64
"""Number of tokens of a text that count as one observation, because neighbouring losses are correlated."""
PIECE = 256
"""Number of tokens whose logits are in memory at the same time."""
WARM = 32
"""Number of tokens at the beginning of a text that are only context, not measured, as in ds4's perplexity tool."""


def words(limit: int) -> Metric:
    """Return the metric "log of 1 + number of words" of the greedy answer, which has at most ``limit`` tokens."""

    def metric(engine: Engine, prompt: Sequence[int]) -> float:
        from ..generate import Generation

        session = engine.session(len(prompt) + limit + 1)
        session.sync(prompt)
        answer = Generation(session, engine.tokenizer, engine.sampler(), limit=limit)
        return math.log1p(len("".join(piece.text for piece in answer).split()))

    return metric


def logprob(one: Sequence[int], other: Sequence[int]) -> Metric:
    """Return the metric "log probability per token of continuation ``one``, minus that of ``other``" (token ids)."""

    def metric(engine: Engine, prompt: Sequence[int]) -> float:
        session = engine.session(len(prompt) + max(len(one), len(other)) + 1)
        return float(-nll(session, prompt, one).mean() + nll(session, prompt, other).mean())

    return metric


def nll(session: Session, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """Return the negative log-likelihood of each token of ``text`` after ``prompt``, in nats, (tokens,) float64."""
    session.sync(prompt)
    out, before = np.empty(len(text)), session.logits[None]
    for at in range(0, len(text), PIECE):
        piece = text[at : at + PIECE]
        after = session.extend(piece)
        logits = np.vstack([before, after[:-1]]).astype(np.float64)
        before, top = after[-1:], logits.max(axis=1)
        normalizer = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        out[at : at + len(piece)] = normalizer - logits[np.arange(len(piece)), list(piece)]
    return out
