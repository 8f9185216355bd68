"""Drafts of chosen quality: the true continuation, each token wrong at a chosen rate. For measurements and tests.

Whether a position's token is wrong, and which wrong token it is, depends on seed and position alone, so it does not
matter how often, or for how many tokens, a draft is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MASK = (1 << 64) - 1


class Given:
    """Drafts from ``text``, the whole timeline as plain decode would make it.

    acceptance  probability that a token is right, 0 to 1
    vocab       number of token ids, at least 2: wrong tokens are other ids below it
    """

    name = "given"

    def __init__(self, text: Sequence[int], acceptance: float, vocab: int, seed: int = 0):
        self.text, self.acceptance, self.vocab, self.seed = text, acceptance, vocab, seed

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return the next tokens of the text, some of them wrong; [] where the timeline has left it. See ``Draft``."""
        at = len(tokens)
        if not 0 < at <= len(self.text) or self.text[at - 1] != tokens[-1]:
            return []
        return [self._token(position) for position in range(at, min(at + max(0, limit), len(self.text)))]

    def truncate(self, pos: int) -> None:
        """Do nothing: a position's token is always the same."""

    def _token(self, position: int) -> int:
        right = self.text[position]
        drawn = _mixed(_mixed(self.seed) + position)
        if (drawn >> 11) < self.acceptance * (1 << 53):
            return right
        return (right + 1 + _mixed(drawn) % (self.vocab - 1)) % self.vocab


def _mixed(value: int) -> int:
    """Return 64 bits that look random (SplitMix64's output for this state)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
