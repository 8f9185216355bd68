"""Compressor of a kv source: makes one attention row and one index key of each token, or of each pair of tokens.

Both come from the same latent vector, the key before rope. All later layers, up to the next source, read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..inputs import of_sequence
from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np


class Projected(NamedTuple):
    """What a compressor computes for each of T tokens: values and, for pairs, their gates, (T, head_dim) each."""

    kv: np.ndarray
    gate: np.ndarray | None

    def of(self, places: slice | None) -> Projected:
        """Return the part that belongs to one sequence's tokens, which are at ``places`` in the chunk."""
        return Projected(of_sequence(self.kv, places), None if self.gate is None else of_sequence(self.gate, places))


def project(c: Chunk, x: np.ndarray) -> Projected | None:
    """Project the attention input x (T, D) if the current layer is a kv source."""
    w = c.w
    if c.layer not in c.shape.kv_sources:
        return None
    kv = c.tap("attn_comp_kv_raw", c.ops.linear(x, w.attn_compressor_kv, "float"))
    if w.attn_compressor_gate is None:
        return Projected(kv, None)
    return Projected(kv, c.tap("attn_comp_gate_raw", c.ops.linear(x, w.attn_compressor_gate, "float")))


def store(c: Chunk, projected: Projected) -> None:
    """Store the rows and index keys that one sequence's tokens complete, and what an incomplete pair waits for."""
    ops, w, eps = c.ops, c.w, c.shape.rms_eps
    pooled = _pooled(c, projected)
    if pooled is None:
        return
    latent = c.tap("attn_comp_norm", ops.rms_norm(pooled, w.attn_compressor_norm, eps))
    cos, sin = c.tap("attn_comp_rope_tables", c.row_tables())
    row = c.tap("KVcompress", c.row_rounding(ops.rope(latent[:, None, :], cos, sin)[:, 0]))
    ops.store_rows(row, c.cache.rows("attn"), c.at(c.ratio))
    key = ops.rms_norm(ops.linear(latent, w.indexer_attn_k, "float"), w.indexer_k_norm, eps)
    key = c.tap("indexer_KVcompress", c.index_rounding(ops.rope(key[:, None, :], cos, sin)[:, 0]))
    ops.store_rows(key, c.cache.rows("indexer"), c.at(c.ratio))


def _pooled(c: Chunk, projected: Projected) -> np.ndarray | None:
    """Return the vectors (n, head_dim) of the rows that the tokens complete, before the norm; None if they complete
    none."""
    ops, n, (kv, gate) = c.ops, c.plan.closing[c.ratio], projected
    if gate is None:
        return kv
    ring, pooled = c.cache.projections["attn"], None
    if n:
        candidates = (
            ops.windows(ring.kv, kv, c.at(), n, c.ratio, False),
            ops.windows(ring.score, gate, c.at(), n, c.ratio, False),
        )
        pooled = ops.pool(*c.tap("attn_comp_candidates", candidates))
    ops.store_rows(kv, ring.kv, c.at())
    ops.store_rows(gate, ring.score, c.at())
    return pooled
