"""Quantize weights to Q6_K: sixteen groups of 16 with signed 8-bit scales (kernels/formats/q6_k.py has the layout)."""

from __future__ import annotations

from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, store_f16
from .blocks import export_rows
from .lanes import load_byte, store_byte
from .signed import signed_block
from .symmetric import Symmetric

SEARCH = Symmetric(lanes=16, n=16, low=-32, high=31, spread=0.8, starts=7, passes=1)
FLOOR = 0.5
"""Floor of the error costs without importance, in rms of the group; lower than for other formats, because codes are
fine."""


@njit(**JIT)
def pack(block, codes, scales, d):
    """Write one block from byte codes (code + 32) and float scales."""
    for half in range(2):
        at = codes + 128 * half
        for i in range(32):
            a, b = load_byte(at + i), load_byte(at + 32 + i)
            c, e = load_byte(at + 64 + i), load_byte(at + 96 + i)
            store_byte(block + 64 * half + i, (a & 15) | (c & 15) << 4)
            store_byte(block + 64 * half + 32 + i, (b & 15) | (e & 15) << 4)
            store_byte(block + 128 + 32 * half + i, a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6)
    for j in range(16):
        store_byte(block + 192 + j, int(load_float(scales + 4 * j)))
    store_f16(block + 208, d)


export_rows("Q6_K", signed_block(SEARCH, 128, 1, 3, (1, FLOOR), pack))
