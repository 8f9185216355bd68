"""A session that speculates as the real one is to, on a target of small tables: logits by the last two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ds4ref.drafts.speculation import Speculation
from ds4ref.sampling import argmax


class Target:
    """Logits (V,) float32 by the last two tokens; pure, so that a row of a pass equals decode."""

    def __init__(self, vocab: int, seed: int, spread: float = 1.5):
        self.table = np.random.default_rng(seed).normal(0, spread, (vocab, vocab, vocab)).astype(np.float32)
        self.vocab, self.rows = vocab, 0

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        self.rows += 1
        return self.table[tokens[-2] if len(tokens) > 1 else 0, tokens[-1]]


class SpeculatingSession:
    """``append`` asks for drafts and evaluates the token and them in one pass; rows ahead wait for the next one."""

    def __init__(self, target: Target, speculation: Speculation | None, ctx: int):
        self.target, self.speculation, self.ctx = target, speculation, ctx
        self.tokens: list[int] = []
        self.passes = 0
        self.valid = False
        self._ahead: list[int] = []
        self._rows: list[np.ndarray] = []
        self._accepted = 0
        self.draft: int | None = None
        """The draft of the next token, if there is one."""

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def logits(self) -> np.ndarray:
        return self._rows[0]

    def logit(self, token: int) -> float:
        return float(self.logits[token])

    def argmax(self, exclude: int | None = None) -> int:
        return argmax(self.logits, exclude)

    def ranked(self, k: int) -> None:
        return None

    def start(self, tokens: Sequence[int]) -> None:
        """Begin another sequence."""
        self._settle()
        if self.speculation:
            self.speculation.truncate(0)
        self.tokens, self._ahead, self.draft, self.valid = list(tokens[:-1]), [], None, True
        self.append(tokens[-1])

    def append(self, token: int) -> None:
        if self._ahead and self._ahead[0] == token:
            self.tokens.append(token)
            self._accepted += 1
            self._ahead, self._rows = self._ahead[1:], self._rows[1:]
        else:
            self._settle()
            self.tokens.append(token)
            drafts = []
            if self.speculation:
                drafts = self.speculation.propose(self.tokens, None, self.ctx - len(self.tokens))
            line = [*self.tokens, *drafts]
            self._rows = [self.target.logits(line[: len(line) - len(drafts) + row]) for row in range(len(drafts) + 1)]
            self._ahead, self._accepted, self.passes = list(drafts), 0, self.passes + 1
            if self.speculation:
                self.speculation.passed(len(drafts) + 1, 1.0 + 0.2 * len(drafts))
        self.draft = self._ahead[0] if self._ahead else None

    def _settle(self) -> None:
        if self.speculation and (self._ahead or self._accepted):
            self.speculation.settled(self._accepted)
        self._ahead, self._accepted = [], 0


class Guess:
    """A draft by the target's own tables: the likeliest token of a blurred copy, right as often as one likes."""

    name = "guess"

    def __init__(self, target: Target, seed: int, blur: float):
        noise = np.random.default_rng(seed).normal(0, blur, target.table.shape)
        self.best = (target.table + noise).argmax(axis=2)

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        line = list(tokens[-2:]) if len(tokens) > 1 else [0, *tokens]
        for _ in range(limit):
            line.append(int(self.best[line[-2], line[-1]]))
        return line[2:]

    def truncate(self, pos: int) -> None:
        pass
