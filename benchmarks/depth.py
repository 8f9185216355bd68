"""Sessions with a long past that was never computed: caches filled with plausible rows, for timing only.

A token costs what it costs because of how many rows there are, not because of what is in them. The rows drawn here
have the spread and the rounding of real ones (attention rows E4M3 in binary16, indexer rows E2M1), so that every
kernel takes its usual way. What such a session predicts means nothing.
"""

from __future__ import annotations

import numpy as np

from ds4ref.engine import Engine
from ds4ref.archs.deepseek4.cache import Rows
from ds4ref.session.session import Session

PIECE = 4096


def session_at(engine: Engine, pos: int, ctx: int | None = None) -> Session:
    """A session that believes to have evaluated ``pos`` tokens, with room for ``ctx`` (default: 4096 more)."""
    session = engine.session(ctx or pos + 4096)
    if pos < 1:
        return session
    rng = np.random.default_rng(pos)
    ops, shape, cache = engine.model.ops, engine.shape, session._cache
    kv = ops.round_e4m3(rng.standard_normal((PIECE, shape.head_dim), np.float32))
    index = ops.round_e2m1(ops.hadamard(rng.standard_normal((PIECE, shape.index_dim), np.float32)))
    for layer, ratio in zip(cache.layers, shape.ratios, strict=True):
        layer.raw.load(kv[: min(pos, shape.window)], pos)
        if ratio:
            _fill(layer.comp, kv, pos // ratio, rng)
        if ratio == 4:
            _fill(layer.index, index, pos // ratio, rng)
        for state in layer.states():
            width = state.kv.shape[1]
            n = pos % ratio
            pending = rng.standard_normal((2, ratio, width)).astype(np.float32)
            state.keep_window(pending[0], pending[1])
            state.keep_pending(pending[0, :n], pending[1, :n])
    cache.pos = pos
    session._tokens = [1] * pos
    session._streams = rng.standard_normal((1, shape.hc, shape.dim), np.float32)
    return session


def _fill(rows: Rows, source: np.ndarray, count: int, rng: np.random.Generator) -> None:
    """``count`` rows in a shuffled order that differs from piece to piece."""
    for start in range(0, count, PIECE):
        piece = np.roll(source, int(rng.integers(PIECE)), axis=0)
        rows.append(piece[: min(PIECE, count - start)])
