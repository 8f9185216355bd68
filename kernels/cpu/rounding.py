"""Simulated low-precision formats and integer activations (signatures as in ``kernels.reference``)."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .abi import Task
from .arrays import address, chunk_of, expect, f32
from .workers import POOL

E4M3_BLOCK = 64
E2M1_BLOCK = 32


def _blocks(x: np.ndarray, block: int, task: Task) -> np.ndarray:
    x = f32(x, "x")
    expect(x.shape[-1] % block == 0, f"{task.name} works in blocks of {block}", x.shape)
    out = np.empty(x.shape, np.float32)
    items = x.size // block
    POOL.run((task, items, chunk_of(items, 4 * block, POOL.threads), (address(x), address(out))))
    return out


def round_e4m3(x: np.ndarray) -> np.ndarray:
    """E4M3 round trip of x (..., n) in blocks of 64 along the last axis."""
    return _blocks(x, E4M3_BLOCK, t.ROUND_E4M3)


def round_e2m1(x: np.ndarray) -> np.ndarray:
    """E2M1 (FP4) round trip of x (..., n) in blocks of 32 along the last axis."""
    return _blocks(x, E2M1_BLOCK, t.ROUND_E2M1)


def round_f16(x: np.ndarray) -> np.ndarray:
    """To binary16 and back, any shape."""
    x = f32(x, "x")
    out = np.empty(x.shape, np.float32)
    POOL.run((t.ROUND_F16, x.size, chunk_of(x.size, 1, POOL.threads), (address(x), address(out))))
    return out


def hadamard(x: np.ndarray) -> np.ndarray:
    """Sylvester butterfly over the last axis (a power of two), scaled by n^-1/2."""
    x = f32(x, "x")
    n = x.shape[-1]
    expect(n > 0 and n & (n - 1) == 0, "hadamard needs a power of two", x.shape)
    out = np.empty(x.shape, np.float32)
    rows = x.size // n
    POOL.run((t.HADAMARD, rows, chunk_of(rows, 8 * n, POOL.threads), (address(x), address(out), n, n**-0.5)))
    return out


def quantize_a8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x (T, n) -> int8 codes (T, n), float32 scales (T, n/32)."""
    x = f32(x, "x")
    expect(x.ndim == 2 and x.shape[1] % 32 == 0, "quantize_a8 works in blocks of 32", x.shape)
    codes, scales = np.empty(x.shape, np.int8), np.empty((x.shape[0], x.shape[1] // 32), np.float32)
    values = (address(x), address(codes), address(scales))
    POOL.run((t.QUANTIZE_A8, scales.size, chunk_of(scales.size, 64, POOL.threads), values))
    return codes, scales


def quantize_q8k(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (T, n) -> int8 codes (T, n), float32 scales (T, n/256), int16 sums of 16 codes (T, n/16)."""
    x = f32(x, "x")
    expect(x.ndim == 2 and x.shape[1] % 256 == 0, "quantize_q8k works in blocks of 256", x.shape)
    tokens, n = x.shape
    codes, scales = np.empty(x.shape, np.int8), np.empty((tokens, n // 256), np.float32)
    sums = np.empty((tokens, n // 16), np.int16)
    values = (address(x), address(codes), address(scales), address(sums))
    POOL.run((t.QUANTIZE_Q8K, scales.size, chunk_of(scales.size, 512, POOL.threads), values))
    return codes, scales, sums
