"""Pooling of a compressor window: one softmax per channel over the candidate rows (docs/explanation/model.md 6)."""

from __future__ import annotations

import numpy as np

ABSENT = -5e29
"""No candidate of a window exists in a channel whose best score is not above this."""


def pool(kv: np.ndarray, score: np.ndarray) -> np.ndarray:
    """kv, score (n, m, c) -> (n, c): per channel, softmax of the m scores, weighted sum of the m values.

    A candidate that does not exist has a score so low (-1e30) that it weighs nothing; 0 where none exists.
    """
    score = score.astype(np.float64)
    top = score.max(axis=1, keepdims=True)
    absent = top <= ABSENT
    weight = np.exp(score - np.where(absent, 0, top))
    mean = (weight * kv).sum(axis=1) / np.where(absent[:, 0], 1, weight.sum(axis=1))
    return mean.astype(np.float32)


def store_rows(x: np.ndarray, rows: np.ndarray, at: np.ndarray) -> None:
    """Row at + i of the ring ``rows`` (N, w) becomes x[i]; only the last N are stored."""
    kept = np.arange(max(0, len(x) - len(rows)), len(x))
    with np.errstate(over="ignore"):
        rows[(int(at[0]) + kept) % len(rows)] = x[kept]


def position_bias(gate: np.ndarray, ape: np.ndarray, at: np.ndarray) -> np.ndarray:
    """gate[i] + ape[(at + i) mod r]."""
    return gate + ape[(int(at[0]) + np.arange(len(gate))) % len(ape)]


def windows(ring: np.ndarray, new: np.ndarray, at: np.ndarray, count: int, ratio: int, overlap: bool) -> np.ndarray:
    """Rows of ``count`` windows from position at // ratio * ratio on, (count, ratio, 2 c), or (count, 2 ratio, c)."""
    pos0 = int(at[0])
    starts = (pos0 // ratio + np.arange(count)) * ratio
    where = starts[:, None] + np.arange(-ratio if overlap else 0, ratio)
    rows = np.where((where < pos0)[..., None], ring[where % len(ring)], new[np.clip(where - pos0, 0, len(new) - 1)])
    if not overlap:
        return rows
    half = ring.shape[1] // 2
    return np.concatenate((rows[:, :ratio, :half], rows[:, ratio:, half:]), axis=1)
