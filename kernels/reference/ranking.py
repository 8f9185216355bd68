"""The greatest values of a row, as the next token is chosen among logits (docs/explanation/text.md 6)."""

from __future__ import annotations

import numpy as np

from ..ops import LEAST


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """x (T, n) -> values float32 (T, k) and ids int32 (T, k), falling, ties to the lower id; NaN and everything up to
    ``LEAST`` are equal."""
    least = np.float32(LEAST)
    ids = np.argsort(-np.where(x > least, x, least), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, ids, axis=1), ids.astype(np.int32)
