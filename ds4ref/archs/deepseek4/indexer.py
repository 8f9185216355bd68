"""Indexer of a ratio-4 layer: selects the compressed rows that each token attends to (docs/explanation/model.md 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..inputs import of_sequence
from . import compressor
from .chunk import Chunk
from .shape import CSA

if TYPE_CHECKING:
    import numpy as np

SCORES_AT_ONCE = 16 << 20
"""Maximum number of indexer scores (tokens x rows) computed at a time: 64 MB of memory; for a context of a million
tokens, the scores of 64 tokens."""


class Wanted(NamedTuple):
    """What the indexer computes from the attention inputs of T tokens, before rows are selected.

    projected  projections of its compressor, from which new indexer rows are made
    q          query heads (T, Hi, d); None while so few rows exist that all are selected
    weights    weight of each head's scores (T, Hi), or None like ``q``
    """

    projected: compressor.Projected
    q: np.ndarray | None
    weights: np.ndarray | None

    def of(self, places: slice | None) -> Wanted:
        """Return the part that belongs to one sequence's tokens, which are at ``places`` in the chunk."""
        if self.q is None:
            return Wanted(self.projected.of(places), None, None)
        return Wanted(self.projected.of(places), of_sequence(self.q, places), of_sequence(self.weights, places))


def project(c: Chunk, x: np.ndarray, u: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> Wanted:
    """Compute compressor projections, query heads and head weights of the indexer, from the attention input x (T, D)
    and the normed low-rank query u (T, q_rank); ``tables``: cos and sin for RoPE."""
    ops, s, w = c.ops, c.shape, c.w
    projected = compressor.project(c, "indexer", x)
    if not any(part.plan.scored for part, _ in c.sequences()):
        return Wanted(projected, None, None)
    iq = ops.linear(u, w.indexer_attn_q_b, "float").reshape(len(x), s.index_heads, s.index_dim)
    iq = c.tap("indexer_q", c.index_rounding(ops.rope(iq, *tables)))
    weights = ops.scale(ops.linear(x, w.indexer_proj, "float"), s.index_scale)
    return Wanted(projected, iq, c.tap("indexer_weights", weights))


def select(c: Chunk, wanted: Wanted) -> np.ndarray | None:
    """Store the indexer rows that one sequence's tokens complete, then select the compressed rows that each of these
    tokens attends to.

    Return row numbers int32 (T, k), ascending and padded with -1; None while there are at most k rows, all selected.
    """
    ops, s = c.ops, c.shape
    row = compressor.closed_rows(c, "indexer", wanted.projected)
    if row is not None:
        row = c.tap("indexer_KVcompress", c.store(c.index_rounding(row)))
        ops.store_rows(row, c.cache.rows("indexer"), c.at(CSA))
    if not c.plan.scored:
        return c.tap("indexer_topk", None)
    iq, weights = wanted.q, wanted.weights
    assert iq is not None and weights is not None
    rows = c.tap("indexer_rows", c.cache.rows("indexer")[: c.plan.scored])
    visible = c.visible(CSA)
    parts = c.parts(len(rows), SCORES_AT_ONCE)
    if len(parts) == 1:
        scores = c.tap("indexer_scores", ops.index_scores(iq, rows, weights, c.rows(CSA)))
        return c.tap("indexer_topk", ops.select_rows(scores, visible, s.index_topk))
    selected = ops.array(len(iq), s.index_topk, dtype="i4")
    for part in parts:
        scores = ops.index_scores(iq[part], rows, weights[part], c.rows(CSA))
        ops.fill(selected[part], ops.select_rows(scores, visible[part], s.index_topk))
    return selected
