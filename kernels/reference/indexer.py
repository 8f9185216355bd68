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


def block_maxima(scores: np.ndarray, visible: np.ndarray, size: int, count: int) -> np.ndarray:
    """Return the greatest of the scores (T, n) in each of ``count`` blocks of ``size`` rows -> (T, count).

    Of each token's rows the first visible[t] count; the last block with one of them gets infinity, a block without any
    -infinity.
    """
    tokens, n = scores.shape
    padded = np.full((tokens, count * size), -np.inf, np.float32)
    seen = np.arange(n) < visible[:, None]
    padded[:, :n] = np.where(seen, scores, np.float32(-np.inf))
    best = padded.reshape(tokens, count, size).max(axis=2)
    last = np.minimum(visible, n) - 1
    rows = np.flatnonzero(last >= 0)
    best[rows, last[rows] // size] = np.inf
    return best


def block_scores(iq: np.ndarray, rows: np.ndarray, w: np.ndarray, blocks: np.ndarray, size: int) -> np.ndarray:
    """Score the rows of each token's own blocks (T, b) as ``index_scores`` does -> (T, b * size); -infinity for rows
    that do not exist."""
    where = (blocks[:, :, None].astype(np.int64) * size + np.arange(size)).reshape(len(blocks), -1)
    exists = (blocks.repeat(size, axis=1) >= 0) & (where < len(rows))
    out = np.full(where.shape, -np.inf, np.float32)
    for t, (places, here) in enumerate(zip(where, exists, strict=True)):
        part = slice(t, t + 1)
        out[t, here] = index_scores(iq[part], rows[places[here]], w[part], np.array([here.sum()]))[0]
    return out


def block_rows(picks: np.ndarray, blocks: np.ndarray, size: int) -> np.ndarray:
    """Return the row number of each place (T, k) in the scores of blocks (T, b) of ``size`` rows; -1 for a place out of
    range."""
    block = picks // size
    known = (picks >= 0) & (block < blocks.shape[1])
    chosen = np.take_along_axis(blocks, np.where(known, block, 0), axis=1) if blocks.shape[1] else block
    return np.where(known, chosen * size + picks % size, -1).astype(np.int32)
