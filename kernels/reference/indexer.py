"""The indexer, which chooses the compressed rows that attention reads: scores, and deterministic top-k selection
(docs/explanation/model.md 7)."""

from __future__ import annotations

import numpy as np


def index_scores(iq: np.ndarray, rows: np.ndarray, w: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Score rows (n, d) for queries iq (T, H, d) with head weights w (T, H) -> (T, n): sum_h relu(iq_h . row) * w_h.

    w may be negative. Backends may skip rows from count[0] on; this implementation scores all rows.
    """
    scores = np.zeros((iq.shape[0], rows.shape[0]), np.float64)
    keys = rows.astype(np.float64).T
    for h in range(iq.shape[1]):
        scores += np.maximum(iq[:, h].astype(np.float64) @ keys, 0) * w[:, h, None]
    return scores.astype(np.float32)


def select_rows(scores: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    """Return the numbers of the k best-scored of each token's first visible[t] rows: int32 (T, k), ascending, padded
    with -1.

    Of equal scores the lower row wins; if visible[t] <= k all visible rows are selected.
    """
    out = np.full((scores.shape[0], k), -1, np.int32)
    for t, n in enumerate(visible):
        order = np.argsort(-scores[t, :n], kind="stable")[:k] if n > k else np.arange(n)
        out[t, : len(order)] = np.sort(order)
    return out
