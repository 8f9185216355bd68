"""Top-k values of a row of logits, for sampling (docs/explanation/text.md 6)."""

from __future__ import annotations

import numpy as np

from ..ops import LEAST


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k greatest values of x (T, n), float32 (T, k), and their ids, int32 (T, k), in descending order.

    Of equal values the lower id comes first. NaN and values up to ``LEAST`` count as equal.
    """
    least = np.float32(LEAST)
    ids = np.argsort(-np.where(x > least, x, least), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, ids, axis=1), ids.astype(np.int32)
