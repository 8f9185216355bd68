"""Where a timeline is worth a checkpoint: ds4's rules, as plain functions of positions.

cold        the beginning of a prompt that was new, for other conversations that share it: up to its last user message
            before the first answer, or else nearly all of it, cut where chunks end
continued   every so many tokens of a long one, so that a lost process costs no more than those
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Policy:
    """All in tokens.

    min_tokens   shorter timelines are neither saved nor loaded
    cold_max     longer prompts get no cold checkpoint; 0: no prompt gets one
    interval     between continued checkpoints, rounded up to a multiple of ``align``; 0: none are made
    trim         left out at the end of a prompt, where the next one may differ
    align        lengths are multiples of it; 0: any length

    UsageError if they contradict each other.
    """

    min_tokens: int = 512
    cold_max: int = 30_000
    interval: int = 10_000
    trim: int = 32
    align: int = 2048

    def __post_init__(self) -> None:
        if self.min_tokens < 1 or min(self.cold_max, self.interval, self.trim, self.align) < 0:
            raise UsageError("lengths of checkpoints cannot be negative, and at least 1 token is kept")
        if 0 < self.cold_max < self.min_tokens:
            raise UsageError(f"no prompt has {self.min_tokens} tokens or more and at most {self.cold_max}")

    @property
    def step(self) -> int:
        """Tokens from one continued checkpoint to the next; 0: none."""
        return -(-self.interval // self.align) * self.align if self.align else self.interval

    def stable(self, tokens: int) -> int:
        """The length to keep of a prompt of ``tokens``: trimmed and aligned, or all of it if too little were left."""
        if tokens > self.min_tokens + self.trim:
            length = tokens - self.trim
            length -= length % self.align if self.align else 0
            if length >= self.min_tokens:
                return length
        return tokens

    def anchor(self, ids: Sequence[int], user: int, assistant: int) -> int:
        """Tokens before the last user marker that precedes the first assistant marker; -1 if they are too few."""
        found = -1
        for at, token in enumerate(ids):
            if token == assistant:
                break
            if token == user:
                found = at
        return found if found >= self.min_tokens else -1

    def cold(self, ids: Sequence[int], user: int, assistant: int) -> int:
        """How much of a new prompt gets a checkpoint; 0 for none."""
        if not self.min_tokens <= len(ids) <= self.cold_max:
            return 0
        length = self.anchor(ids, user, assistant)
        return length if length > 0 else self.stable(len(ids))

    def due(self, live: int, last: int) -> bool:
        """Whether a timeline of ``live`` tokens, ``last`` of which are kept, has come to a continued checkpoint, or
        has passed one where it could not be made."""
        return bool(self.step) and live >= self.min_tokens and live // self.step > last // self.step


class Frontiers:
    """The continued checkpoints of one timeline: how many of its tokens are kept already."""

    def __init__(self, policy: Policy, kept: int = 0):
        self.policy, self.kept = policy, kept

    def due(self, live: int) -> bool:
        """Whether to make one at ``live`` tokens."""
        return self.policy.due(live, self.kept)

    def cold_begins(self, length: int) -> int:
        """A cold checkpoint of ``length`` tokens will be made. Where a continued one were due there as well, none is
        needed on the way. What to give to ``cold_failed`` if it was not made."""
        before = self.kept
        if self.policy.step and length % self.policy.step == 0:
            self.saved(length)
        return before

    def cold_failed(self, length: int, before: int) -> None:
        """There is none of ``length`` tokens after all; what else happened meanwhile counts."""
        if self.kept == length:
            self.kept = before

    def saved(self, length: int) -> None:
        """There is one of ``length`` tokens."""
        self.kept = max(self.kept, length)
