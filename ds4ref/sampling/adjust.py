"""Adjusts logits as a request asks before a token is chosen: logit biases, repetition penalties, minimum length.

As OpenAI's API defines it: ``logit + bias - count * frequency - (count > 0) * presence``, where ``count`` is how often
the token occurs in the answer so far. Tokens of the prompt do not count. A logit of -inf stays -inf.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np


class Adjustment:
    """Adjusts the logits of one answer; call it before each token is chosen.

    bias       added to the logit, by token id; an id outside the vocabulary raises IndexError at the first call
    presence   subtracted once from the logit of every token that occurs in the answer
    frequency  subtracted once per occurrence
    ends       ids of end tokens, which cannot be chosen before the answer has ``least`` tokens
    least      minimum number of tokens of the answer
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
        """Return adjusted logits (V,) float32 for the next token.

        tokens: all tokens of the answer so far; those of the previous call, and any that followed.
        """
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
