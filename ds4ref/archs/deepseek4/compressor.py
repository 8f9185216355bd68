"""Compressor: pools windows of 4 or 128 tokens into one cached row each (docs/explanation/model.md 6).

The same routine makes attention rows (head_dim wide) and indexer rows (index_dim wide). Projections wait in a ring
until their window closes. Where windows overlap (ratio 4) a row mixes the first half of the previous window's
projections with the second half of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..inputs import of_sequence
from .chunk import Chunk
from .shape import CSA

if TYPE_CHECKING:
    import numpy as np


class Projected(NamedTuple):
    """Projections of a compressor for T tokens: values and gates, (T, width) each."""

    kv: np.ndarray
    gate: np.ndarray

    def of(self, places: slice | None) -> Projected:
        """Return the projections of one sequence's tokens."""
        return Projected(of_sequence(self.kv, places), of_sequence(self.gate, places))


def project(c: Chunk, prefix: str, x: np.ndarray) -> Projected:
    """Project x (T, D); ``prefix`` is "attn" or "indexer"."""
    w = c.w.compressor(prefix)
    kv = c.tap(f"{prefix}_comp_kv_raw", c.ops.linear(x, w.kv, "float"))
    return Projected(kv, c.tap(f"{prefix}_comp_gate_raw", c.ops.linear(x, w.gate, "float")))


def closed_rows(c: Chunk, prefix: str, projected: Projected) -> np.ndarray | None:
    """Put a sequence's projections into the ring and return the rows (n, width) of windows closed by the chunk, normed
    and rotated.

    Return None if no window closed. ``prefix`` is "attn" or "indexer". The first row belongs to window pos0 // ratio.
    The caller rounds and stores the rows.
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
