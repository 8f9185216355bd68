"""Engram: vectors looked up by the hashes of the newest n-grams (``hashing``), gated into the residual streams.

key_1 .. key_C, value = W (the columns' rows, joined)
X_i += sigmoid(sign(s) sqrt(max(|s|, 1e-6))) value,   s = <norm(X_i) q_i, norm(key_i) k_i> / sqrt(D)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np


def apply(c: Chunk, X: np.ndarray) -> np.ndarray:
    """Add what the current layer's table has for the chunk's tokens to the residual streams X (T, C, D), gated for each
    stream; return the new streams."""
    ops, w = c.ops, c.w
    assert w.engram_kv is not None
    rows = c.tap("engram_rows", c.input(("engram", c.layer), c.lookups[c.layer])[0])
    joined = c.tap("engram_kv", ops.linear(rows, w.engram_kv, c.act(w.engram_kv)))
    return c.tap("engram_out", ops.engram_gate(c.tap("engram_in", X), joined, w.engram_gate, c.shape.rms_eps))
