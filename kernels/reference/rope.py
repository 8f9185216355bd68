"""Rotary embedding on the trailing channels, adjacent pairs (docs/model.md 5)."""

from __future__ import annotations

import numpy as np


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Rotate the last R channels of x (T, H, w) by the angles whose cos and sin (T, R/2) are given; returns a copy."""
    half = cos.shape[1]
    out = x.copy()
    tail = x[..., x.shape[-1] - 2 * half :].reshape(*x.shape[:-1], half, 2)
    c, s = cos[:, None, :], -sin[:, None, :] if inverse else sin[:, None, :]
    a, b = tail[..., 0], tail[..., 1]
    rotated = np.stack((a * c - b * s, a * s + b * c), axis=-1)
    out[..., x.shape[-1] - 2 * half :] = rotated.reshape(*x.shape[:-1], 2 * half)
    return out
