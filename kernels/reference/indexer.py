"""Indexer: scores of compressed rows, and deterministic top-k selection (docs/explanation/model.md 7)."""

from __future__ import annotations

import numpy as np


def index_scores(iq: np.ndarray, rows: np.ndarray, w: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Score rows (n, d) for iq (T, H, d), w (T, H) -> (T, n): sum over heads of relu(iq_h . row) * w_h.

    w may be negative. The op may skip rows from count[0] on; this implementation scores all rows.
    """
    scores = np.zeros((iq.shape[0], rows.shape[0]), np.float64)
    keys = rows.astype(np.float64).T
    for h in range(iq.shape[1]):
        scores += np.maximum(iq[:, h].astype(np.float64) @ keys, 0) * w[:, h, None]
    return scores.astype(np.float32)


def select_rows(scores: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    """Select the k best of the first visible[t] rows per token: int32 (T, k), ascending, padded with -1.

    Ties go to the lower row; with visible[t] <= k all visible rows are selected.
    """
    out = np.full((scores.shape[0], k), -1, np.int32)
    for t, n in enumerate(visible):
        order = np.argsort(-scores[t, :n], kind="stable")[:k] if n > k else np.arange(n)
        out[t, : len(order)] = np.sort(order)
    return out
