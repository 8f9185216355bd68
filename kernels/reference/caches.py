"""Storing rows, compression windows, and their pooling: one softmax per channel (docs/explanation/model.md 6)."""

from __future__ import annotations

import numpy as np

ABSENT = -5e29
"""Score at or below which a pooling candidate counts as absent."""


def pool(kv: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Pool kv, score (n, m, c) -> (n, c): per channel, softmax of the m scores, weighted sum of the m values.

    An absent candidate has the score -1e30, so that its weight is 0; without any candidate the result is 0.
    """
    score = score.astype(np.float64)
    top = score.max(axis=1, keepdims=True)
    absent = top <= ABSENT
    weight = np.exp(score - np.where(absent, 0, top))
    mean = (weight * kv).sum(axis=1) / np.where(absent[:, 0], 1, weight.sum(axis=1))
    return mean.astype(np.float32)


def store_rows(x: np.ndarray, rows: np.ndarray, at: np.ndarray) -> None:
    """Store x[i] at row (at + i) mod N of the ring ``rows`` (N, w), only the last N of x."""
    kept = np.arange(max(0, len(x) - len(rows)), len(x))
    with np.errstate(over="ignore"):
        rows[(int(at[0]) + kept) % len(rows)] = x[kept]


def position_bias(gate: np.ndarray, ape: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return gate[i] + ape[(at + i) mod r]."""
    return gate + ape[(int(at[0]) + np.arange(len(gate))) % len(ape)]


def windows(ring: np.ndarray, new: np.ndarray, at: np.ndarray, count: int, ratio: int, overlap: bool) -> np.ndarray:
    """Gather ``count`` compression windows, beginning with window at // ratio.

    Return (count, ratio, c), or (count, 2 ratio, c) with ``overlap``: rows of the previous window, then its own.
    """
    pos0 = int(at[0])
    starts = (pos0 // ratio + np.arange(count)) * ratio
    where = starts[:, None] + np.arange(-ratio if overlap else 0, ratio)
    rows = np.where((where < pos0)[..., None], ring[where % len(ring)], new[np.clip(where - pos0, 0, len(new) - 1)])
    if not overlap:
        return rows
    half = ring.shape[1] // 2
    return np.concatenate((rows[:, :ratio, :half], rows[:, ratio:, half:]), axis=1)
