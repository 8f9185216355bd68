"""The greatest values of a row, as the next token is chosen among logits (docs/text.md 6)."""

from __future__ import annotations

import numpy as np

from ..ops import LEAST, MOST_RANKED


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """x (T, n) -> values float32 (T, k) and ids int32 (T, k), falling, ties to the lower id; NaN and everything up to
    ``LEAST`` are equal."""
    if x.ndim != 2 or not 1 <= k <= min(x.shape[1], MOST_RANKED):
        raise ValueError(f"top: shapes do not fit: {x.shape}, {k}")
    least = np.float32(LEAST)
    ids = np.argsort(-np.where(x > least, x, least), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, ids, axis=1), ids.astype(np.int32)
