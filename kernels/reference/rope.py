"""Rotary embedding on the trailing channels, adjacent pairs or halves (docs/explanation/model.md 5)."""

from __future__ import annotations

import numpy as np


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False, halves: bool = False) -> np.ndarray:
    """Rotate the last R channels of x (T, H, w) by the angles whose cos and sin (T, R/2) are given; returns a copy.

    Pairs are adjacent channels (RoFormer), or channel i and R/2 + i of them (GPT-NeoX) if ``halves``.
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
