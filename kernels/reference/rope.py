"""Rotary position embedding (RoPE) of the last channels of each head (docs/explanation/model.md 5)."""

from __future__ import annotations

import numpy as np


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False, halves: bool = False) -> np.ndarray:
    """Return x (T, H, w) with pairs of the last R channels rotated by the angles of cos and sin (T, R/2), backwards if
    ``inverse``.

    Pairs are adjacent channels (RoFormer) or, if ``halves``, channels i and R/2 + i of these R (GPT-NeoX).
    """
    half = cos.shape[1]
    out = x.copy()
    plain = x.shape[-1] - 2 * half
    first, second = (
        (slice(plain, plain + half), slice(plain + half, None))
        if halves
        else (slice(plain, None, 2), slice(plain + 1, None, 2))
    )
    c, s = cos[:, None, :], -sin[:, None, :] if inverse else sin[:, None, :]
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out
