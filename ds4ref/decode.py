"""Decode: the pass of one token, recorded once and replayed for every further one.

The first token of a kind runs through the model's own pass with a backend that records: the ops compute nothing, they
note steps that wait for what they read. For the next tokens only the inputs are set (token, position, rope angles) and
the steps run as one job. Which recording fits is the model's ``plan_token``: what its pass decides from the position,
such as whether a compression window closes. There is no second copy of the pass, so nothing can differ but the
schedule; tests assert equality to the bit.

A recording ends with the choice: the most likely tokens and their logits come to the host, everything else stays where
the backend keeps it until it is asked for (``Left``), and is gone with the next token.

A recording holds addresses of one cache's buffers, so it goes when one of them moves. Hooks see no recorded token: with
hooks a session runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from .archs import Cache, Model

MOST = 8
"""Recordings kept for one cache: three or four kinds of token are current at any depth."""


RANKS, MOST_RANKS = 2, 64
"""Of how many tokens a replay tells: the most likely one, and who takes its place if it is excluded; more, once
somebody has asked for more. Beyond ``MOST_RANKS`` a CPU is quicker to bring logits to the host and partition them."""


class Left(NamedTuple):
    """What a replayed token left.

    streams   final streams (1, ...), an array of the backend
    logits    (1, V) float32, an array of the backend; both hold until the recording is replayed again
    best      ids of the most likely next tokens, in the order of the op ``top``
    values    their logits
    """

    streams: Any
    logits: Any
    best: list[int]
    values: list[float]


def record(model: Model, cache: Cache, plan: Any, ranks: int = RANKS) -> tuple[Any, Callable[[int, int], None]]:
    """The pass of a token and the choice of the next one as a recording, whose outputs are values and ids of ``top``
    and which keeps streams and logits; and what sets token and position before a replay."""
    recording: Any = model.ops.record()
    streams, logits, move = model.record_token(recording, cache, plan)
    recording.seal(*recording.top(logits, min(ranks, model.shape.vocab)), kept=(streams, logits))
    return recording, move


class Decoder:
    """Recordings of one cache. Use ``of``: not every backend records."""

    def __init__(self, model: Model, cache: Cache):
        self.model, self.cache = model, cache
        self.ranks = RANKS
        """Ranks that later tokens tell; recordings are made anew when it changes."""
        self._made_for: tuple[int, int, int] = (-1, -1, -1)
        self._recordings: dict[Hashable, tuple[Any, Callable[[int, int], None]]] = {}
        self.last: Any = None
        """The recording that ran last."""

    @classmethod
    def of(cls, model: Model, cache: Cache) -> Decoder | None:
        """A decoder, or None if the backend cannot record."""
        return cls(model, cache) if model.ops.record() is not None else None

    def run(self, token: int) -> Left:
        """Advance the cache by one token."""
        model, cache = self.model, self.cache
        cache.reserve(1)
        plan, key = model.plan_token(cache)
        made_for = cache.moves, model.ops.threads, self.ranks
        if made_for != self._made_for:
            self._recordings.clear()
            self._made_for = made_for
        if key not in self._recordings:
            if len(self._recordings) == MOST:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[key] = record(model, cache, plan, self.ranks)
        self.last, move = self._recordings[key]
        move(token, cache.pos)
        self.last.replay()
        cache.advance(1)
        host, (values, best), (streams, logits) = model.ops.host, self.last.outputs, self.last.kept
        return Left(streams, logits, host(best).tolist()[0], host(values).tolist()[0])
