"""Indexer of a ratio-4 layer: selects the compressed rows that each token attends to (docs/explanation/model.md 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import compressor
from .chunk import Chunk
from .shape import CSA

if TYPE_CHECKING:
    import numpy as np

SCORES_AT_ONCE = 16 << 20
"""Maximum number of indexer scores (tokens x rows) computed at a time: 64 MB, or 64 tokens at a context of a
million."""


def select(c: Chunk, x: np.ndarray, u: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray | None:
    """Update the indexer rows with x (T, D), then select the compressed rows that each token attends to.

    u (T, q_rank) is the normed low-rank query, ``tables`` the rope tables of the chunk. Return row ids int32 (T, k),
    ascending and padded with -1, or None while every visible row fits in top-k.
    """
    ops, s, w = c.ops, c.shape, c.w
    row = compressor.closed_rows(c, "indexer", x)
    if row is not None:
        row = c.tap("indexer_KVcompress", c.store(c.index_rounding(row)))
        ops.store_rows(row, c.cache.rows("indexer"), c.at(CSA))
    if not c.plan.scored:
        return c.tap("indexer_topk", None)
    iq = ops.linear(u, w.indexer_attn_q_b, "float").reshape(len(x), s.index_heads, s.index_dim)
    iq = c.tap("indexer_q", c.index_rounding(ops.rope(iq, *tables)))
    weights = ops.scale(ops.linear(x, w.indexer_proj, "float"), s.index_scale)
    weights = c.tap("indexer_weights", weights)
    rows = c.tap("indexer_rows", c.cache.rows("indexer")[: c.plan.scored])
    visible = c.visible(CSA)
    parts = c.parts(len(rows), SCORES_AT_ONCE)
    if len(parts) == 1:
        scores = c.tap("indexer_scores", ops.index_scores(iq, rows, weights, c.rows(CSA)))
        return c.tap("indexer_topk", ops.select_rows(scores, visible, s.index_topk))
    selected = ops.array(len(x), s.index_topk, dtype="i4")
    for part in parts:
        scores = ops.index_scores(iq[part], rows, weights[part], c.rows(CSA))
        ops.fill(selected[part], ops.select_rows(scores, visible[part], s.index_topk))
    return selected
