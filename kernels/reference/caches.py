"""Storing cache rows, and compressing windows of them to one row each by pooling (docs/explanation/model.md 6)."""

from __future__ import annotations

import numpy as np

ABSENT = -5e29
"""Score at or below which a row to be pooled counts as absent."""


def pool(kv: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Pool kv (n, m, c) with scores (n, m, c) -> (n, c): per channel, the sum of the m values, weighted by the softmax
    of their scores.

    A row that does not exist has the score -1e30, so that its weight is 0; if none exists the result is 0.
    """
    score = score.astype(np.float64)
    top = score.max(axis=1, keepdims=True)
    absent = top <= ABSENT
    weight = np.exp(score - np.where(absent, 0, top))
    mean = (weight * kv).sum(axis=1) / np.where(absent[:, 0], 1, weight.sum(axis=1))
    return mean.astype(np.float32)


def store_rows(x: np.ndarray, rows: np.ndarray, at: np.ndarray) -> None:
    """Store x[i] in row (at + i) mod N of the ring buffer ``rows`` (N, w); if x has more than N rows, only the last
    N."""
    kept = np.arange(max(0, len(x) - len(rows)), len(x))
    with np.errstate(over="ignore"):
        rows[(int(at[0]) + kept) % len(rows)] = x[kept]


def position_bias(gate: np.ndarray, ape: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Add to each token's gate the bias of its position within a window: gate[i] + ape[(at + i) mod r]."""
    return gate + ape[(int(at[0]) + np.arange(len(gate))) % len(ape)]


def windows(ring: np.ndarray, new: np.ndarray, at: np.ndarray, count: int, ratio: int, overlap: bool) -> np.ndarray:
    """Gather the rows of ``count`` compression windows of ``ratio`` positions each, from window at // ratio.

    Rows before position ``at`` come from the ring buffer, others from ``new``. Return (count, ratio, c), or with
    ``overlap`` (count, 2 ratio, c): half the channels of the previous window's rows, then the others of its own rows.
    """
    pos0 = int(at[0])
    starts = (pos0 // ratio + np.arange(count)) * ratio
    where = starts[:, None] + np.arange(-ratio if overlap else 0, ratio)
    rows = np.where((where < pos0)[..., None], ring[where % len(ring)], new[np.clip(where - pos0, 0, len(new) - 1)])
    if not overlap:
        return rows
    half = ring.shape[1] // 2
    return np.concatenate((rows[:, :ratio, :half], rows[:, ratio:, half:]), axis=1)
