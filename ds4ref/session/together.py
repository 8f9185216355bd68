"""Evaluate the next tokens of several sessions in one pass, which reads the weights only once.

    together = Together(model)
    together.look_ahead([(a, 17), (b, 4711)])   # both in one pass: weights are read once
    a.append(17)                                # computes nothing more
    b.append(4711)

Results are bit-identical to those of a session that computes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..archs import Model
from ..decode import Decoder
from .session import Session

MOST_GROUPS = 2
"""Number of groups of sessions for which recordings (``decode``) are kept."""


class Together:
    """Evaluates next tokens of several sessions of one model in one pass."""

    def __init__(self, model: Model):
        self.model = model
        self._decoders: dict[tuple[Session, ...], Decoder] = {}
        decoder = Decoder.of(model)
        self.most = 1 if decoder is None else decoder.most_rows
        """Maximum number of sessions that a pass can serve."""

    def look_ahead(self, asked: Sequence[tuple[Session, int]]) -> None:
        """Evaluate the next token of each (session, token) pair in one pass; at most ``most`` pairs.

        Sessions that cannot take part (with hooks, full, or with tokens evaluated ahead already) are left out, and
        compute in their own ``append``. A failure leaves every session as it was.
        """
        ready = sorted((one for one in asked if one[0].joins(one[1])), key=lambda one: id(one[0]))
        if len(ready) < 2:
            return
        decoder = self._decoder(tuple(session for session, _ in ready))
        for (session, token), rows in zip(ready, decoder.run(*([token] for _, token in ready)), strict=True):
            session.take(rows, [token])

    def _decoder(self, sessions: tuple[Session, ...]) -> Decoder:
        """Return the decoder that evaluates these sessions together, the one used before if their caches are the
        same."""
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
        """Drop the recordings that use a session's cache."""
        self._decoders = {group: decoder for group, decoder in self._decoders.items() if session not in group}
