"""Quantize weights to IQ4_NL and IQ4_XS: codes are uneven levels (kernels/formats/iq4_nl.py, iq4_xs.py)."""

from __future__ import annotations

from numba import njit

from ...formats.iq4_nl import LEVELS
from ..simd.helpers import load_float
from ..tasks.lang import JIT, store_f16
from ..tasks.registry import export
from .blocks import export_rows
from .lanes import store_byte
from .signed import signed_block
from .single import fitted_rows, pack_4, pack_nibbles
from .symmetric import Symmetric

SEARCH = Symmetric(
    lanes=8, n=32, low=LEVELS.values[0], high=LEVELS.values[-1], spread=14, starts=7, passes=2, levels=LEVELS.values
)
FLOOR = 0.5

_rows = fitted_rows("IQ4_NL", SEARCH, 2, FLOOR, pack_4)


@export("quantize.IQ4_NL", 5)
def iq4_nl(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    _rows(x, rows, cols, importance, out)


@njit(**JIT)
def pack(block, codes, scales, d):
    """Write one block of IQ4_XS from numbers of levels and float scales."""
    store_f16(block, d)
    for byte in range(2):
        high = 0
        for k in range(4):
            high |= (int(load_float(scales + 16 * byte + 4 * k)) + 32) >> 4 << 2 * k
        store_byte(block + 2 + byte, high)
    for byte in range(4):
        a, b = int(load_float(scales + 8 * byte)) + 32, int(load_float(scales + 8 * byte + 4)) + 32
        store_byte(block + 4 + byte, (a & 15) | (b & 15) << 4)
    for j in range(8):
        pack_nibbles(block + 8 + 16 * j, codes + 32 * j)


export_rows("IQ4_XS", signed_block(SEARCH, 32, 1, 3, (2, FLOOR), pack))
