"""Drafts: tokens that are likely to come next, for a session to verify many of them in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Draft(Protocol):
    """Proposes the next tokens of one timeline."""

    name: str

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return at most ``limit`` tokens that are likely to follow ``tokens``.

        tokens: the timeline, the token about to be evaluated last; a live list: neither kept nor changed.
        (len(tokens) - 1 are evaluated.)
        streams: final streams (k, C, D) of the newest k >= 1 evaluated tokens, positions len(tokens) - 1 - k ..
        len(tokens) - 2, an array of the backend valid only during the call; or None if unknown (after a load or
        restore).
        """

    def truncate(self, pos: int) -> None:
        """Forget what is known of positions from ``pos`` on: the timeline was rewound, or replaced by another (then
        ``pos`` is the common prefix or 0)."""


__all__ = ["Draft"]
