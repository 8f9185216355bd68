"""One pass for several sessions: the next token of each, in as many rows.

    together = Together(model)
    together.look_ahead([(a, 17), (b, 4711)])   # both in one pass: weights are read once
    a.append(17)                                # costs nothing more
    b.append(4711)

What a session gets is to the bit what it gets by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..archs import Model
from ..decode import Decoder
from .session import Session

MOST_GROUPS = 2
"""Number of groups of sessions whose recordings are kept."""


class Together:
    """Passes over groups of sessions of one model."""

    def __init__(self, model: Model):
        self.model = model
        self._decoders: dict[tuple[Session, ...], Decoder] = {}
        decoder = Decoder.of(model)
        self.most = 1 if decoder is None else decoder.most_rows
        """Number of sessions that a pass can serve."""

    def look_ahead(self, asked: Sequence[tuple[Session, int]]) -> None:
        """Evaluate the next token of each session in one pass, at most ``most`` of them.

        One that is not ready (with hooks, full, or with rows ahead already) is left out: its ``append`` computes. A
        failure leaves every session as it was.
        """
        ready = sorted((one for one in asked if one[0].joins(one[1])), key=lambda one: id(one[0]))
        if len(ready) < 2:
            return
        decoder = self._decoder(tuple(session for session, _ in ready))
        for (session, token), rows in zip(ready, decoder.run(*([token] for _, token in ready)), strict=True):
            session.take(rows, [token])

    def _decoder(self, sessions: tuple[Session, ...]) -> Decoder:
        caches, ranks = zip(*(session.lend() for session in sessions), strict=True)
        decoder = self._decoders.pop(sessions, None)
        if decoder is None or decoder.caches != caches:
            decoder = Decoder(self.model, *caches)
        while len(self._decoders) >= MOST_GROUPS:
            del self._decoders[next(iter(self._decoders))]
        self._decoders[sessions] = decoder
        decoder.ranks = max(ranks)
        return decoder

    def forget(self, session: Session) -> None:
        """Drop recordings that hold a session's caches."""
        self._decoders = {group: decoder for group, decoder in self._decoders.items() if session not in group}
