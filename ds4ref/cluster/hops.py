"""Streams on their way from worker to worker: as they are (f32), or rounded to bfloat16, half the bytes (bf16)."""

from __future__ import annotations

import numpy as np


def packed(X: np.ndarray, kind: str) -> np.ndarray:
    """Return streams float32 to be sent: as they are, or as the uint16 of the nearest bfloat16, ties to even."""
    if kind == "f32":
        return X
    bits = np.ascontiguousarray(X).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def unpacked(data: np.ndarray) -> np.ndarray:
    """Return streams float32 of what ``packed`` made."""
    return (data.astype(np.uint32) << 16).view(np.float32) if data.dtype == np.uint16 else data
