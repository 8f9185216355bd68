"""What steering is measured by, without a grader: one number a prompt, and nats a token of a text.

    words     log of 1 + the number of words of the greedy answer
    logprob   log probability a token of one given continuation, minus that of another

Differences of both are in nats, as the cost is: the loss of a text. A nat of effect is an answer 2.7 times as long, or
a continuation 2.7 times as likely a token beside the other.
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
"""Function from an engine and a prompt to the number that steering should move."""
BLOCK = 64
"""Tokens of a text that count as one observation, since errors of neighbours are correlated."""
PIECE = 256
"""Tokens whose logits are in memory at once."""
WARM = 32
"""Tokens at the beginning of a text that are context only, as in ds4's perplexity."""


def words(limit: int) -> Metric:
    """Return the metric of the length of a greedy answer of at most ``limit`` tokens."""

    def metric(engine: Engine, prompt: Sequence[int]) -> float:
        from ..generate import Generation

        session = engine.session(len(prompt) + limit + 1)
        session.sync(prompt)
        answer = Generation(session, engine.tokenizer, engine.sampler(), limit=limit)
        return math.log1p(len("".join(piece.text for piece in answer).split()))

    return metric


def logprob(one: Sequence[int], other: Sequence[int]) -> Metric:
    """Return the metric of the log probability a token of continuation ``one``, minus that of ``other``, both token
    ids."""

    def metric(engine: Engine, prompt: Sequence[int]) -> float:
        session = engine.session(len(prompt) + max(len(one), len(other)) + 1)
        return float(-nll(session, prompt, one).mean() + nll(session, prompt, other).mean())

    return metric


def nll(session: Session, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """Return the nats of each token of ``text`` after ``prompt``, float64 (tokens,)."""
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
