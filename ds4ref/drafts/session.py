"""A session that drafts: when a token is appended, the tokens drafted to follow it are evaluated in the same pass.

Those that are appended next then need no pass of their own. Nothing else changes: all outputs are bit-identical to
those of a session without drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..archs import Model
from ..session.session import Session
from .speculation import Speculation

if TYPE_CHECKING:
    import numpy as np


class DraftingSession(Session):
    """A session with drafts, as ``Engine.session`` returns it; its ``speculation`` serves no other session."""

    def __init__(self, model: Model, ctx: int, speculation: Speculation):
        self.speculation = speculation
        super().__init__(model, ctx)

    @property
    def _window(self) -> int:
        return self.speculation.window

    def _drafts(self, token: int, most: int) -> list[int]:
        room = min(most, self.ctx - self.pos - 1)
        if room < 1:
            return []
        streams = self._streams
        if self._rows is not None:  # it holds the streams of all tokens of the newest pass: take those up to this token
            streams = self._rows.streams[: self._row + 1]
        self._tokens.append(token)
        try:
            return self.speculation.propose(self._tokens, streams, room)
        finally:
            self._tokens.pop()

    def _passed(self, rows: int, seconds: float) -> None:
        self.speculation.passed(rows, seconds)

    def _settled(self, accepted: int) -> None:
        self.speculation.settled(accepted)

    def _start(self, cache: Any, tokens: list[int], logits: np.ndarray | None = None) -> None:
        super()._start(cache, tokens, logits)
        self.speculation.attach(self._cache_ahead)

    def _truncated(self, pos: int) -> None:
        self.speculation.truncate(pos)
