"""Indexer of a ratio-4 layer: which compressed rows each token attends to (engine.md 3.5)."""

from __future__ import annotations

import numpy as np

from ..session.cache import LayerCache
from ..weights.tensors import LayerWeights
from . import compressor
from .chunk import Chunk

SCORES_AT_ONCE = 16 << 20
"""Scores (tokens x rows) kept in memory at a time: 64 MB, which at a million tokens of context are 64 tokens' worth."""


def select(
    chunk: Chunk, layer: int, w: LayerWeights, x: np.ndarray, u: np.ndarray, tables: tuple, cache: LayerCache
) -> np.ndarray | None:
    """Update the indexer rows with x (T, D), then choose rows for every token.

    u (T, q_rank) is the normed query low rank, ``tables`` the rope tables of the chunk. Returns int32 (T, k) row ids,
    ascending and padded with -1, or None while every visible row fits in top-k.
    """
    ops, shape = chunk.ops, chunk.shape
    rows = compressor.emit_rows(chunk, "indexer", layer, x, w.compressor("indexer"), cache.index_state)
    if len(rows):
        rows = chunk.store(chunk.index_rounding(rows))
        cache.index.append(chunk.tap("indexer_KVcompress", layer, rows))

    visible = chunk.visible(4)
    if visible[-1] <= shape.index_topk:
        chunk.tap("indexer_topk", layer, None)
        return None
    iq = ops.linear(u, w.indexer_attn_q_b, "float").reshape(len(x), shape.index_heads, shape.index_dim)
    iq = chunk.tap("indexer_q", layer, chunk.index_rounding(ops.rope(iq, *tables)))
    scale = np.float32((shape.index_dim * shape.index_heads) ** -0.5)
    weights = chunk.tap("indexer_weights", layer, ops.linear(x, w.indexer_proj, "float") * scale)
    rows = chunk.tap("indexer_rows", layer, cache.index.rows)
    if chunk.hooks is None:
        step = max(1, SCORES_AT_ONCE // len(rows))
        picks = []
        for i in range(0, len(iq), step):
            scores = ops.index_scores(iq[i : i + step], rows, weights[i : i + step])
            picks.append(ops.select_rows(scores, visible[i : i + step], shape.index_topk))
        return np.concatenate(picks)
    scores = chunk.tap("indexer_scores", layer, ops.index_scores(iq, rows, weights))
    return chunk.tap("indexer_topk", layer, ops.select_rows(scores, visible, shape.index_topk))
