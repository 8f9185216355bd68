"""Decode: the pass of one token, recorded once and replayed for every further one.

The first token of a kind runs through the model's own pass with a backend that records: the ops compute nothing, they
note steps that wait for what they read. For the next tokens only the inputs are set (token, position, rope angles) and
the steps run as one job. Which recording fits is the model's ``plan_token``: what its pass decides from the position,
such as whether a compression window closes. There is no second copy of the pass, so nothing can differ but the
schedule; tests assert equality to the bit.

A recording holds addresses of one cache's buffers, so it goes when one of them moves. Hooks see no recorded token: with
hooks a session runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from .archs import Cache, Model

MOST = 8
"""Recordings kept for one cache: three or four kinds of token are current at any depth."""


class Decoder:
    """Recordings of one cache. Use ``of``: not every backend records."""

    def __init__(self, model: Model, cache: Cache):
        self.model, self.cache = model, cache
        self._made_for: tuple[int, int] = (-1, -1)
        self._recordings: dict[Hashable, tuple[Any, Callable[[int, int], None]]] = {}
        self.last: Any = None
        """The recording that ran last."""

    @classmethod
    def of(cls, model: Model, cache: Cache) -> Decoder | None:
        """A decoder, or None if the backend cannot record."""
        return cls(model, cache) if model.ops.record() is not None else None

    def run(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Advance the cache by one token; returns final streams (1, ...) and logits (V,), both copies."""
        model, cache = self.model, self.cache
        cache.reserve(1)
        plan, key = model.plan_token(cache)
        made_for = cache.moves, model.ops.threads
        if made_for != self._made_for:
            self._recordings.clear()
            self._made_for = made_for
        if key not in self._recordings:
            if len(self._recordings) == MOST:
                del self._recordings[next(iter(self._recordings))]
            recording = model.ops.record()
            self._recordings[key] = recording, model.record_token(recording, cache, plan)
        self.last, move = self._recordings[key]
        move(token, cache.pos)
        self.last.replay()
        cache.advance(1)
        host = model.ops.host
        streams, logits = self.last.outputs
        return host(streams).copy(), host(logits)[0].copy()
