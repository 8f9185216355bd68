"""What a request adds to logits before a token is chosen: a bias of single tokens, and penalties for repeating.

As OpenAI's API defines it: ``logit + bias - count * frequency - (count > 0) * presence``, where ``count`` is how often
the answer has the token so far. Tokens of the prompt do not count. A logit of -inf stays one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np


class Adjustment:
    """The adjustment of one answer's logits.

    bias         by token id; ids outside the vocabulary are the caller's mistake (IndexError)
    presence     subtracted once from the logit of every token that the answer has
    frequency    subtracted from it for every time that the answer has it
    ends, least  tokens that cannot be chosen before the answer has ``least`` tokens
    """

    def __init__(
        self,
        bias: Mapping[int, float],
        presence: float = 0.0,
        frequency: float = 0.0,
        ends: Collection[int] = (),
        least: int = 0,
    ):
        self._ends, self._least = list(ends), least
        self._bias, self._presence, self._frequency = dict(bias), presence, frequency
        self._added: np.ndarray | None = None
        self._counted = 0
        self._seen: set[int] = set()

    def __call__(self, logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        """Return adjusted logits (V,) float32 of the token after ``tokens``, which extend those of the call before."""
        if self._added is None:
            self._added = np.zeros(len(logits), np.float32)
            for token, value in self._bias.items():
                self._added[token] = value
        for token in tokens[self._counted :]:
            self._added[token] -= self._frequency + (0.0 if token in self._seen else self._presence)
            self._seen.add(token)
        self._counted = len(tokens)
        adjusted = logits + self._added
        if len(tokens) < self._least:
            adjusted[self._ends] = -np.inf
        return adjusted
