"""Quantize weights to Q2_K: sixteen groups of 16 with 4-bit scales and minima (kernels/formats/blocks_256.py has the
layout)."""

from __future__ import annotations

from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, store_f16
from .affine import Affine
from .blocks import affine_block, export_rows
from .lanes import load_byte, store_byte

SEARCH = Affine(lanes=16, n=16, top=3, most=15, starts=(1.8, 4.2, 9), passes=2, turns=4)


@njit(**JIT)
def pack(block, codes, scales, minima, ds):
    """Write one block from byte codes and float scales."""
    for j in range(16):
        store_byte(block + j, int(load_float(scales + 4 * j)) | int(load_float(minima + 4 * j)) << 4)
    for half in range(2):
        at = codes + 128 * half
        for i in range(32):
            low = load_byte(at + i) | load_byte(at + 32 + i) << 2
            high = load_byte(at + 64 + i) | load_byte(at + 96 + i) << 2
            store_byte(block + 16 + 32 * half + i, low | high << 4)
    store_f16(block + 80, load_float(ds))
    store_f16(block + 82, load_float(ds + 4))


export_rows("Q2_K", affine_block(SEARCH, 1, pack))
