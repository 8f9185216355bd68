"""Rules for when to save a checkpoint of a session's KV cache: those of ds4, as plain functions of token positions.

cold        saved after a new prompt, for other conversations that begin in the same way: it covers the prompt up to the
            last user message before the first answer, or else nearly all of it, cut at a multiple of ``align``
continued   saved at regular intervals of a long sequence, so that little is lost if the process dies
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Policy:
    """When checkpoints are made; all values are in tokens.

    min_tokens   shorter sequences are neither saved nor loaded
    cold_max     longer prompts get no cold checkpoint; 0: no prompt gets one
    interval     between continued checkpoints, rounded up to a multiple of ``align``; 0: none are made
    trim         tokens left out at the end of a prompt, where the next prompt may differ
    align        lengths are multiples of it; 0: any length

    Raise UsageError if the values contradict each other.
    """

    min_tokens: int = 512
    cold_max: int = 30_000
    interval: int = 10_000
    trim: int = 32
    align: int = 2048

    def __post_init__(self) -> None:
        if self.min_tokens < 1 or min(self.cold_max, self.interval, self.trim, self.align) < 0:
            raise UsageError("checkpoint lengths must not be negative, and the minimum must be at least 1 token")
        if 0 < self.cold_max < self.min_tokens:
            raise UsageError(f"no prompt has {self.min_tokens} tokens or more and at most {self.cold_max}")

    @property
    def step(self) -> int:
        """Return the number of tokens between continued checkpoints, 0 for none."""
        return -(-self.interval // self.align) * self.align if self.align else self.interval

    def stable(self, tokens: int) -> int:
        """Return how many tokens of a prompt of ``tokens`` tokens to save: trimmed and aligned, or all if that leaves
        too few."""
        if tokens > self.min_tokens + self.trim:
            length = tokens - self.trim
            length -= length % self.align if self.align else 0
            if length >= self.min_tokens:
                return length
        return tokens

    def anchor(self, ids: Sequence[int], user: int, assistant: int) -> int:
        """Return the position of the last user marker before the first assistant marker, -1 if it is below
        ``min_tokens``.

        user, assistant: token ids of the markers.
        """
        position = -1
        for at, token in enumerate(ids):
            if token == assistant:
                break
            if token == user:
                position = at
        return position if position >= self.min_tokens else -1

    def cold(self, ids: Sequence[int], user: int, assistant: int) -> int:
        """Return the number of tokens of a new prompt that a cold checkpoint covers; 0 for no checkpoint. ``user``,
        ``assistant``: as for ``anchor``."""
        if not self.min_tokens <= len(ids) <= self.cold_max:
            return 0
        length = self.anchor(ids, user, assistant)
        return length if length > 0 else self.stable(len(ids))

    def due(self, live: int, last: int) -> bool:
        """Return whether a sequence of ``live`` tokens, the first ``last`` of which are saved, needs a continued
        checkpoint."""
        return bool(self.step) and live >= self.min_tokens and live // self.step > last // self.step


class Frontiers:
    """Tracks how many tokens of one sequence are covered by saved checkpoints."""

    def __init__(self, policy: Policy, saved_tokens: int = 0):
        self.policy, self.saved_tokens = policy, saved_tokens

    def due(self, live: int) -> bool:
        """Return whether a continued checkpoint is due at ``live`` tokens."""
        return self.policy.due(live, self.saved_tokens)

    def cold_begins(self, length: int) -> int:
        """Record that a cold checkpoint of ``length`` tokens is about to be written; return the number of tokens saved
        before, for ``cold_failed``.

        It also replaces a continued checkpoint that would be due at the same position.
        """
        before = self.saved_tokens
        if self.policy.step and length % self.policy.step == 0:
            self.saved(length)
        return before

    def cold_failed(self, length: int, before: int) -> None:
        """Undo ``cold_begins(length)``, which returned ``before``: the checkpoint was not written. A longer one saved
        since still counts."""
        if self.saved_tokens == length:
            self.saved_tokens = before

    def saved(self, length: int) -> None:
        """Record that a checkpoint of ``length`` tokens was written."""
        self.saved_tokens = max(self.saved_tokens, length)
