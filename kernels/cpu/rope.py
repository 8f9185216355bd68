"""Rotary embedding (signature as in ``kernels.reference.rope``)."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .arrays import address, chunk_of, expect, f32
from .workers import POOL


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Turn the last R channels of x (T, H, w) by the angles with cos, sin (T, R/2); a new array."""
    x, cos, sin = f32(x, "x"), f32(cos, "cos"), f32(sin, "sin")
    expect(x.ndim == 3 and cos.shape == sin.shape and cos.ndim == 2, "rope", x.shape, cos.shape, sin.shape)
    expect(len(cos) == len(x) and 2 * cos.shape[1] <= x.shape[2], "rope", x.shape, cos.shape)
    tokens, heads, width = x.shape
    out = np.empty(x.shape, np.float32)
    values = (address(x), address(cos), address(sin), address(out), heads, width, cos.shape[1], int(inverse))
    POOL.run((t.ROPE, tokens * heads, chunk_of(tokens * heads, width, POOL.threads), values))
    return out
