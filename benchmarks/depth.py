"""Sessions at a given depth (number of tokens in the context) for timing, with random rows in the KV cache instead of
computed ones.

The time of a token depends on the number of cache rows, not on their values. The random rows have the spread and the
rounding of real ones (attention rows E4M3 in binary16, indexer rows E2M1), so that every kernel takes its usual path.
Predictions of such a session mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.cache import Projections
from ds4ref.engine import Engine
from ds4ref.kernels.reference import Reference
from ds4ref.session.session import Session

PIECE = 4096
reference = Reference()


def session_at(engine: Engine, pos: int, ctx: int | None = None) -> Session:
    """Return a session at position ``pos`` with random cache rows; ``ctx``: context length (default ``pos`` + 4096)."""
    session = engine.session(ctx or pos + 4096)
    if pos < 1:
        return session
    rng = np.random.default_rng(pos)
    ops, shape, cache = engine.model.ops, engine.shape, session._cache
    kv = reference.round_e4m3(rng.standard_normal((PIECE, shape.head_dim), np.float32))
    index = reference.round_e2m1(reference.hadamard(rng.standard_normal((PIECE, shape.index_dim), np.float32)))
    cache.restart(pos)
    for layer, (rows, ratio) in enumerate(zip(cache.layers, shape.ratios, strict=True)):
        projections = {}
        for kind in shape.row_widths(layer):
            _fill(ops, rows.rows(kind), kv if kind == "attn" else index, pos // ratio, rng)
        for kind, ring in rows.projections.items():
            size = min(pos, shape.state_rows(layer)), ring.kv.shape[1]
            projections[kind] = Projections(*rng.standard_normal((2, *size)).astype(np.float32))
        cache.put(layer, kv[: min(pos, shape.window)], projections)
    session._tokens = [1] * pos
    session._streams = rng.standard_normal((1, shape.hc, shape.dim), np.float32)
    return session


def _fill(ops: Any, rows: np.ndarray, source: np.ndarray, count: int, rng: np.random.Generator) -> None:
    """Fill the first ``count`` cache rows with copies of ``source``, each rotated by a random number of rows."""
    for start in range(0, count, PIECE):
        end = min(start + PIECE, count)
        ops.fill(rows[start:end], np.roll(source, int(rng.integers(PIECE)), axis=0)[: end - start])
