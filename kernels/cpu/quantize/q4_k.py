"""Quantize weights to Q4_K: eight groups of 32 with 6-bit scales and minima (kernels/formats/blocks_256.py has the
layout)."""

from __future__ import annotations

from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, store_f16
from .affine import Affine
from .blocks import affine_block, export_rows
from .lanes import load_byte, store_byte

SEARCH = Affine(lanes=8, n=32, top=15, most=63, starts=(13.6, 16.4, 8), passes=2, turns=3)


@njit(**JIT)
def pack(block, codes, scales, minima, ds):
    """Write one block from byte codes, float scales and minima, d and dmin."""
    store_f16(block, load_float(ds))
    store_f16(block + 2, load_float(ds + 4))
    for j in range(4):
        s, m = int(load_float(scales + 4 * j)), int(load_float(minima + 4 * j))
        s2, m2 = int(load_float(scales + 16 + 4 * j)), int(load_float(minima + 16 + 4 * j))
        store_byte(block + 4 + j, s | (s2 >> 4) << 6)
        store_byte(block + 8 + j, m | (m2 >> 4) << 6)
        store_byte(block + 12 + j, (s2 & 15) | (m2 & 15) << 4)
    for p in range(4):
        for i in range(32):
            low, high = load_byte(codes + 64 * p + i), load_byte(codes + 64 * p + 32 + i)
            store_byte(block + 16 + 32 * p + i, low | high << 4)


export_rows("Q4_K", affine_block(SEARCH, 2, pack))
