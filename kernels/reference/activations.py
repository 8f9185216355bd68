"""Integer activations of ds4's CPU dot products (engine.md 2.2): A8 per 32 values, Q8_K per 256."""

from __future__ import annotations

import numpy as np

A8_BLOCK = 32
Q8K_BLOCK = 256


def quantize_a8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes (T, n) and float32 scales (T, n/32): scale = amax/127 kept in float32, codes round half to even."""
    blocks = x.reshape(x.shape[0], -1, A8_BLOCK)
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.clip(np.rint(blocks * inverse[..., None]), -128, 127).astype(np.int8)
    return codes.reshape(x.shape), scale


def quantize_q8k(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q8_K: int8 codes (T, n), float32 scales (T, n/256), int16 sums of 16 codes (T, n/16).

    The first element of largest magnitude becomes -127, so the scale carries the opposite of its sign.
    """
    blocks = x.reshape(x.shape[0], -1, Q8K_BLOCK)
    at = np.abs(blocks).argmax(axis=-1)
    peak = np.take_along_axis(blocks, at[..., None], axis=-1)[..., 0]
    inverse = np.divide(np.float32(-127), peak, out=np.zeros_like(peak), where=peak != 0)
    codes = np.clip(np.rint(blocks * inverse[..., None]), -128, 127).astype(np.int8)
    scale = np.divide(np.float32(1), inverse, out=np.zeros_like(inverse), where=inverse != 0)
    sums = codes.reshape(x.shape[0], -1, 16).sum(axis=-1, dtype=np.int16)
    return codes.reshape(x.shape), scale, sums


def rounded(x: np.ndarray, act: str) -> np.ndarray:
    """x as the dot product sees it: float64 (T, n), after the activation rounding ``act`` (float, a8 or q8k)."""
    if act == "float":
        return x.astype(np.float64)
    if act == "a8":
        codes, scale = quantize_a8(x)
        block = A8_BLOCK
    elif act == "q8k":
        codes, scale, _ = quantize_q8k(x)
        block = Q8K_BLOCK
    else:
        raise ValueError(f"unknown activation rounding {act!r}: float, a8 or q8k")
    return codes.astype(np.float64) * np.repeat(scale.astype(np.float64), block, axis=-1)
