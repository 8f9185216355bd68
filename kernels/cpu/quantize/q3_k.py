"""Quantize weights to Q3_K: sixteen groups of 16 with signed 6-bit scales (kernels/formats/q3_k.py has the layout)."""

from __future__ import annotations

from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, store_f16
from .blocks import export_rows
from .lanes import load_byte, store_byte
from .signed import signed_block
from .symmetric import Symmetric

SEARCH = Symmetric(lanes=16, n=16, low=-4, high=3, spread=0.9, starts=9, passes=2)
FLOOR = 0.25


@njit(**JIT)
def pack(block, codes, scales, d):
    """Write one block from byte codes (code + 4) and float scales."""
    for i in range(32):
        high = 0
        for k in range(8):
            high |= load_byte(codes + 32 * k + i) >> 2 << k
        store_byte(block + i, high)
    for half in range(2):
        at = codes + 128 * half
        for i in range(32):
            low = (load_byte(at + i) & 3) | (load_byte(at + 32 + i) & 3) << 2
            high = (load_byte(at + 64 + i) & 3) | (load_byte(at + 96 + i) & 3) << 2
            store_byte(block + 32 + 32 * half + i, low | high << 4)
    for j in range(4):
        a, b = int(load_float(scales + 4 * j)) + 32, int(load_float(scales + 16 + 4 * j)) + 32
        c, e = int(load_float(scales + 32 + 4 * j)) + 32, int(load_float(scales + 48 + 4 * j)) + 32
        store_byte(block + 96 + j, (a & 15) | (c & 15) << 4)
        store_byte(block + 100 + j, (b & 15) | (e & 15) << 4)
        store_byte(block + 104 + j, a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6)
    store_f16(block + 108, d)


export_rows("Q3_K", signed_block(SEARCH, 32, 4, 3, (2, FLOOR), pack))
