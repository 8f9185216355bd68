"""Rounding of a matrix product's inputs to int8, as in ds4's CPU dot products (docs/explanation/model.md 10.2): A8 in
blocks of 32 values, Q8_K in blocks of 256."""

from __future__ import annotations

import numpy as np

A8_BLOCK = 32
Q8K_BLOCK = 256


def _quantized(blocks: np.ndarray, numerator: float, peak: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return int8 codes of ``blocks`` (T, blocks, n), the inverse scales numerator / peak (T, blocks), and which blocks
    are finite.

    Inverse scale and codes are 0 in blocks with an infinity or a NaN, and where the inverse would not be finite (blocks
    of zeros or tiny values).
    """
    finite = np.isfinite(peak)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(numerator) / np.where(finite, peak, np.float32(0))
    inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    codes = np.rint(np.where(finite[..., None], blocks, np.float32(0)) * inverse[..., None])
    return np.clip(codes, -128, 127).astype(np.int8), inverse, finite


def quantize_a8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize x (T, n) to int8 codes (T, n), ties to even, with float32 scales (T, n/32).

    The scale of a block is its largest magnitude / 127; NaN if the block has an infinity or a NaN.
    """
    blocks = x.reshape(x.shape[0], -1, A8_BLOCK)
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    codes, _, finite = _quantized(blocks, 1, scale)
    return codes.reshape(x.shape), np.where(finite, scale, np.float32(np.nan))


def quantize_q8k(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantize x (T, n) to Q8_K: int8 codes (T, n), float32 scales (T, n/256), int16 sums of every 16 codes (T, n/16).

    The first element of largest magnitude becomes -127, so the sign of the scale is the opposite of that element's. The
    scale of a block with an infinity or a NaN is NaN.
    """
    blocks = x.reshape(x.shape[0], -1, Q8K_BLOCK)
    at = np.abs(blocks).argmax(axis=-1)
    peak = np.take_along_axis(blocks, at[..., None], axis=-1)[..., 0]
    codes, inverse, finite = _quantized(blocks, -127, peak)
    scale = np.divide(np.float32(1), inverse, out=np.zeros_like(inverse), where=inverse != 0)
    sums = codes.reshape(x.shape[0], -1, 16).sum(axis=-1, dtype=np.int16)
    return codes.reshape(x.shape), np.where(finite, scale, np.float32(np.nan)), sums


def rounded(x: np.ndarray, act: str) -> np.ndarray:
    """Return x (T, n) rounded to int8 and back as ``act`` says ("a8" or "q8k"; "float": unchanged), as float64."""
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
