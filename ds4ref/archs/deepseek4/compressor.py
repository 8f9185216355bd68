"""Compressor: pools each window of 4 or 128 tokens into one cached row (docs/explanation/model.md 6).

The same code makes attention rows (head_dim wide) and indexer rows (index_dim wide). Each token's projection is kept in
a ring buffer until its window is complete. Where windows overlap (ratio 4), projections are twice as wide: a row pools
the first half of the previous window's projections and the second half of its own window's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..inputs import of_sequence
from .chunk import Chunk
from .shape import CSA

if TYPE_CHECKING:
    import numpy as np


class Projected(NamedTuple):
    """What a compressor computes for each of T tokens: values and gates (scores before the position bias), (T, width)
    each."""

    kv: np.ndarray
    gate: np.ndarray

    def of(self, places: slice | None) -> Projected:
        """Return the part that belongs to one sequence's tokens, which are at ``places`` in the chunk."""
        return Projected(of_sequence(self.kv, places), of_sequence(self.gate, places))


def project(c: Chunk, prefix: str, x: np.ndarray) -> Projected:
    """Project the attention input x (T, D) by the two matrices of a compressor; ``prefix``: "attn" or "indexer"."""
    w = c.w.compressor(prefix)
    kv = c.tap(f"{prefix}_comp_kv_raw", c.ops.linear(x, w.kv, "float"))
    return Projected(kv, c.tap(f"{prefix}_comp_gate_raw", c.ops.linear(x, w.gate, "float")))


def closed_rows(c: Chunk, prefix: str, projected: Projected) -> np.ndarray | None:
    """Store one sequence's projections in the ring buffer and return the compressed rows (n, width) of the windows that
    the chunk completes, after norm and RoPE; None if it completes none.

    prefix: the compressor, "attn" or "indexer". The first row belongs to window number pos0 // ratio. The caller rounds
    and stores the rows.
    """
    ops, w, ring, n = c.ops, c.w.compressor(prefix), c.cache.projections[prefix], c.plan.closing[c.ratio]
    kv, score = projected.kv, ops.position_bias(projected.gate, w.ape, c.at())
    score = c.tap(f"{prefix}_comp_score_raw", score)
    row = None
    if n:
        overlap = c.ratio == CSA
        candidates = (
            ops.windows(ring.kv, kv, c.at(), n, c.ratio, overlap),
            ops.windows(ring.score, score, c.at(), n, c.ratio, overlap),
        )
        candidates = c.tap(f"{prefix}_comp_candidates", candidates)
        row = ops.rms_norm(ops.pool(*candidates), w.norm, c.shape.rms_eps)
        cos, sin = c.tap(f"{prefix}_comp_rope_tables", c.row_tables())
        row = ops.rope(row[:, None, :], cos, sin)[:, 0]
    ops.store_rows(kv, ring.kv, c.at())
    ops.store_rows(score, ring.score, c.at())
    return row
