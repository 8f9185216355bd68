"""RMS norm, whose sum of squares is float64 and everything after the mean float32 (docs/explanation/model.md 10.4), and
sums and multiples of vectors."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; weight None means 1."""
    mean = np.square(x.astype(np.float64)).mean(axis=-1, keepdims=True).astype(np.float32)
    y = x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
    return y if weight is None else y * weight


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b."""
    return a + b


def scale(x: np.ndarray, factor: float) -> np.ndarray:
    """Return x times ``factor`` rounded to float32."""
    return x * np.float32(factor)


def remove_along(x: np.ndarray, direction: np.ndarray, factor: float) -> np.ndarray:
    """Return x - factor d (d . x) for every row of x, d being ``direction``. With factor 1 and a d of length 1 that
    removes the component along d."""
    along = (x.astype(np.float64) @ direction.astype(np.float64)).astype(np.float32)
    return x - (np.float32(factor) * along)[:, None] * direction
