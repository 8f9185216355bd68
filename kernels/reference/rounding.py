"""Rounding to low-precision formats and back, which simulates caches stored in them (model.md 10.3): E4M3, E2M1,
binary16 and int8 in groups; and the Hadamard transform."""

from __future__ import annotations

import numpy as np

E4M3_BLOCK = 64
E2M1_BLOCK = 32
NVFP4_BLOCK = 16


def _e4m3_values() -> np.ndarray:
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7)).astype(np.float32)


E4M3 = _e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _nearest(magnitude: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the nearest value of ``table`` (ascending); halfway between two, the one with the even index."""
    above = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    # both differences are exact: operands are within a factor of two, or the low one is a multiple of 2^-9
    to_low, to_high = magnitude - low, high - magnitude
    take_high = (to_high < to_low) | ((to_high == to_low) & (above % 2 == 0))
    return np.where(take_high, high, low)


def _round_blocks(x: np.ndarray, block: int, table: np.ndarray, floor: float) -> np.ndarray:
    """Round blocks of ``block`` values: divide by the power of two that brings the largest magnitude (at least
    ``floor``) into the range of ``table``, round to the nearest value in it, and multiply again.

    A block with an infinity or a NaN becomes NaN throughout.
    """
    top = table[-1]
    blocks = x.reshape(*x.shape[:-1], -1, block)
    amax = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), np.float32(floor))
    amax[np.isinf(amax)] = np.nan
    scale = np.exp2(np.ceil(np.log2(amax / top))).astype(np.float32)
    value = np.clip(blocks / scale, -top, top)
    rounded = _nearest(np.abs(value), table)
    return (np.copysign(rounded, value) * scale).reshape(x.shape)


def round_e4m3(x: np.ndarray, channels: int | None = None, block: int = E4M3_BLOCK) -> np.ndarray:
    """Round the first ``channels`` (None: all) of the last axis of x (..., n) to E4M3 in blocks of ``block``.

    The largest magnitude of a block counts as at least 1e-4.
    """
    if channels is None:
        return _round_blocks(x, block, E4M3, 1e-4)
    return np.concatenate((_round_blocks(x[..., :channels], block, E4M3, 1e-4), x[..., channels:]), axis=-1)


def round_e2m1(x: np.ndarray) -> np.ndarray:
    """Round x (..., n) to E2M1 (FP4) in blocks of 32; the largest magnitude of a block counts as at least 6 *
    2^-126."""
    return _round_blocks(x, E2M1_BLOCK, E2M1, 6 * 2.0**-126)


def round_nvfp4(x: np.ndarray) -> np.ndarray:
    """Round x (..., n) to E2M1 in blocks of 16, whose scale, largest magnitude / 6, is itself rounded to E4M3.

    The largest magnitude of a block counts as at least 6 * 2^-9, the scale as at most 448.
    """
    blocks = x.reshape(*x.shape[:-1], -1, NVFP4_BLOCK)
    amax = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), np.float32(6 * 2.0**-9))
    amax[np.isinf(amax)] = np.nan
    scale = _nearest(np.minimum(amax / np.float32(6), E4M3[-1]), E4M3)
    scale = np.where(np.isnan(amax), np.float32(np.nan), scale)
    value = np.clip(blocks / scale, -6, 6)
    return (np.copysign(_nearest(np.abs(value), E2M1), value) * scale).reshape(x.shape)


def round_f16(x: np.ndarray) -> np.ndarray:
    """Round to binary16 and back: ties to even, subnormals kept, overflow to infinity."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def round_i8(x: np.ndarray, group: int = 64) -> np.ndarray:
    """Round x (..., n) to int8 and back in groups of ``group`` values, ties away from zero.

    The float32 scale of a group is its largest magnitude / 127. llama2.c's runq.c rounds the inputs of a matrix this
    way.
    """
    blocks = x.reshape(*x.shape[:-1], -1, group)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    amax[np.isinf(amax)] = np.nan
    scale = amax / np.float32(127)
    value = np.clip(blocks / np.where(scale > 0, scale, np.float32(1)), -127, 127)
    whole = np.trunc(value)
    codes = whole + np.where(np.abs(value - whole) >= 0.5, np.sign(value), np.float32(0)) + np.float32(0)  # no minus 0
    return (codes * scale).reshape(x.shape)


def hadamard(x: np.ndarray) -> np.ndarray:
    """Apply the Walsh-Hadamard transform (Sylvester order) over the last axis, a power of two, scaled by n^-1/2."""
    n = x.shape[-1]
    y = x.copy()
    stride = 1
    while stride < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * stride), 2, stride)
        y = np.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), axis=-2)
        y = y.reshape(x.shape)
        stride *= 2
    return y * np.float32(n**-0.5)
