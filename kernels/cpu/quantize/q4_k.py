"""Weights to Q4_K: eight groups of 32 with 6-bit scales and minima (kernels/formats/q4_k.py has the layout)."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, local, store_f16
from ..tasks.registry import export
from .affine import Affine, fitter
from .lanes import codes_of, importance_weights, load_byte, plain_weights, store_byte, transpose

SEARCH = Affine(lanes=8, n=32, top=15, most=63, starts=(13.6, 16.4, 8), passes=2, turns=3)
BLOCK_BYTES = 144

fit = fitter(SEARCH)
_values, _costs, _across, _codes = local(1024), local(1024), local(1024), local(1024)
_bytes, _scales, _minima, _ds = local(256), local(32), local(32), local(8)


@njit(**JIT)
def pack(block, codes, scales, minima, ds):
    """One block from bytes and floats."""
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


@njit(**JIT)
def quantize_block(x, importance, block):
    """256 floats."""
    costs, values, across, codes = _costs(), _values(), _across(), _codes()
    if importance:
        importance_weights(x, importance, costs, 256, np.float32(2))
    else:
        for g in range(8):
            plain_weights(x + 128 * g, costs + 128 * g, 32)
    transpose(x, values, 8, 32)
    transpose(costs, across, 8, 32)
    scales, minima, ds, flat = _scales(), _minima(), _ds(), _bytes()
    fit(values, across, codes, scales, minima, ds)
    codes_of(codes, flat, 8, 32, np.float32(0))
    pack(block, flat, scales, minima, ds)


@export("quantize.Q4_K", 5)
def quantize(x, rows, cols, importance, out):
    """``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    for r in range(rows):
        for b in range(cols // 256):
            given = importance + 1024 * b if importance else 0
            quantize_block(x + 4 * (r * cols + 256 * b), given, out)
            out += BLOCK_BYTES
