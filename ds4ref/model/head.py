"""Output head: streams to logits (engine.md 3.7)."""

from __future__ import annotations

import numpy as np

from ..weights.tensors import Weights
from .chunk import Chunk

HEAD = -1
"""Layer number under which the head's intermediates are tapped."""


def logits(chunk: Chunk, w: Weights, X: np.ndarray) -> np.ndarray:
    """Streams X (T, C, D) -> logits (T, V). T may be fewer tokens than the chunk has (its last ones)."""
    ops, shape = chunk.ops, chunk.shape
    mix = chunk.tap("result_hc_pre", HEAD, ops.hc_mix(X, w.output_hc_fn, shape.rms_eps))
    weights = ops.hc_head_weights(mix, w.output_hc_scale, w.output_hc_base, shape.hc_eps)
    v = chunk.tap("result_hc", HEAD, ops.hc_reduce(X, chunk.tap("result_hc_weights", HEAD, weights)))
    v = chunk.tap("result_norm", HEAD, ops.rms_norm(v, w.output_norm, shape.rms_eps))
    return chunk.tap("result_output", HEAD, ops.linear(v, w.output, chunk.act(w.output)))
