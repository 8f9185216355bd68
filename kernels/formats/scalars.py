"""F32, F16, BF16, I32, I64: one value, no block (docs/model.md 2.3)."""

from __future__ import annotations

import numpy as np

from .format import block_format


def _widen(values: np.ndarray) -> np.ndarray:
    return values[:, None].astype(np.float32)


def _widen_bf16(values: np.ndarray) -> np.ndarray:
    """A bfloat16 is the upper half of a float32."""
    return (values[:, None].astype(np.uint32) << 16).view(np.float32)


F32 = block_format("F32", 0, 1, np.dtype("<f4"), _widen)
F16 = block_format("F16", 1, 1, np.dtype("<f2"), _widen)
BF16 = block_format("BF16", 30, 1, np.dtype("<u2"), _widen_bf16)
I32 = block_format("I32", 26, 1, np.dtype("<i4"), _widen)  # exact up to 2^24, far beyond any expert id
I64 = block_format("I64", 27, 1, np.dtype("<i8"), _widen)
