"""Quantize weights to Q5_K: eight groups of 32 with 6-bit scales and minima (kernels/formats/q5_k.py has the
layout)."""

from __future__ import annotations

from numba import njit

from ..tasks.lang import JIT
from .affine import Affine
from .blocks import affine_block, export_rows
from .lanes import load_byte, store_byte
from .q4_k import pack_scales

SEARCH = Affine(lanes=8, n=32, top=31, most=63, starts=(29.4, 32.2, 8), passes=2, turns=3)


@njit(**JIT)
def pack(block, codes, scales, minima, ds):
    """Write one block from byte codes and float scales."""
    pack_scales(block, scales, minima, ds)
    for i in range(32):
        high = 0
        for j in range(8):
            high |= load_byte(codes + 32 * j + i) >> 4 << j
        store_byte(block + 16 + i, high)
    for p in range(4):
        for i in range(32):
            low, high = load_byte(codes + 64 * p + i), load_byte(codes + 64 * p + 32 + i)
            store_byte(block + 48 + 32 * p + i, (low & 15) | (high & 15) << 4)


export_rows("Q5_K", affine_block(SEARCH, 2, pack))
