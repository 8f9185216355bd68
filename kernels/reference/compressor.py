"""Pooling of a compressor window: one softmax per channel over the candidate rows (engine.md 3.4)."""

from __future__ import annotations

import numpy as np


def pool(kv: np.ndarray, score: np.ndarray) -> np.ndarray:
    """kv, score (n, m, c) -> (n, c): per channel, softmax of the m scores, weighted sum of the m values.

    A candidate that does not exist has a score so low (-1e30) that it weighs nothing.
    """
    score = score.astype(np.float64)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return ((weight * kv).sum(axis=1) / weight.sum(axis=1)).astype(np.float32)
