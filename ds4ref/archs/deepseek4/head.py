"""Output head: computes logits from the residual streams (docs/explanation/model.md 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chunk import HEAD, Chunk

if TYPE_CHECKING:
    import numpy as np

    from .weights import Weights


def logits(c: Chunk, w: Weights, X: np.ndarray) -> np.ndarray:
    """Compute logits (T, V) from the residual streams X (T, C, D) of the chunk's last T tokens, or of all."""
    return vocabulary(c, w, collapsed(c, w, X))


def collapsed(c: Chunk, w: Weights, X: np.ndarray) -> np.ndarray:
    """Return the weighted sum (T, D) of the residual streams X (T, C, D)."""
    ops, s, c.layer = c.ops, c.shape, HEAD
    mix = c.tap("result_hc_pre", ops.hc_mix(X, w.output_hc_fn, s.rms_eps))
    weights = c.tap("result_hc_weights", ops.hc_head_weights(mix, w.output_hc_scale, w.output_hc_base, s.hc_eps))
    return c.tap("result_hc", ops.hc_reduce(X, weights))


def vocabulary(c: Chunk, w: Weights, v: np.ndarray) -> np.ndarray:
    """Return the logits (T, V) of collapsed streams v (T, D)."""
    ops, s = c.ops, c.shape
    v = c.tap("result_norm", ops.rms_norm(v, w.output_norm, s.rms_eps))
    return c.tap("result_output", ops.linear(v, w.output, c.act(w.output)))
