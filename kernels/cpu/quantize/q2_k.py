"""Weights to Q2_K: sixteen groups of 16 with 4-bit scales and minima (kernels/formats/q2_k.py has the layout)."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, local, store_f16
from ..tasks.registry import export
from .affine import Affine, fitter
from .lanes import codes_of, importance_weights, load_byte, plain_weights, store_byte, transpose

SEARCH = Affine(lanes=16, n=16, top=3, most=15, starts=(1.8, 4.2, 9), passes=2, turns=4)
BLOCK_BYTES = 84

fit = fitter(SEARCH)
_values, _costs, _across, _codes = local(1024), local(1024), local(1024), local(1024)
_bytes, _scales, _minima, _ds = local(256), local(64), local(64), local(8)


@njit(**JIT)
def pack(block, codes, scales, minima, ds):
    """One block from bytes and floats."""
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


@njit(**JIT)
def quantize_block(x, importance, block):
    """256 floats."""
    costs, values, across, codes = _costs(), _values(), _across(), _codes()
    if importance:
        importance_weights(x, importance, costs, 256, np.float32(1))
    else:
        for g in range(16):
            plain_weights(x + 64 * g, costs + 64 * g, 16)
    transpose(x, values, 16, 16)
    transpose(costs, across, 16, 16)
    scales, minima, ds, flat = _scales(), _minima(), _ds(), _bytes()
    fit(values, across, codes, scales, minima, ds)
    codes_of(codes, flat, 16, 16, np.float32(0))
    pack(block, flat, scales, minima, ds)


@export("quantize.Q2_K", 5)
def quantize(x, rows, cols, importance, out):
    """``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    for r in range(rows):
        for b in range(cols // 256):
            given = importance + 1024 * b if importance else 0
            quantize_block(x + 4 * (r * cols + 256 * b), given, out)
            out += BLOCK_BYTES
