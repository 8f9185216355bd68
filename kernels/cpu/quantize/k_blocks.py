"""Quantize weights to Q2_K (sixteen groups of 16 with 4-bit scales and minima) and Q4_K (eight groups of 32 with 6-bit
ones); layouts: kernels/formats/blocks_256.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..simd.helpers import load_float
from ..tasks.lang import JIT, local, store_f16
from .affine import Affine, fitter
from .lanes import codes_of, export_rows, importance_weights, load_byte, plain_weights, store_byte, transpose


def affine_block(search: Affine, spread: int, pack: Any) -> Any:
    """Make the compiled function ``quantize_block`` of a format with scales and minima: it runs the search, then
    ``pack``.

    The square error in a weight x is multiplied by abs(x) + the rms of its group; if its importance a is known, by
    a sqrt(spread mean(x^2) + x^2) instead (docs/reference/quantize.md). ``pack(block, codes, scales, minima, ds)``
    writes a block from codes as bytes, scales and minima as floats, and (d, dmin).
    """
    lanes, n = search.lanes, search.n
    fit, spread32 = fitter(search), np.float32(spread)
    new_values, new_costs, new_across, new_codes = local(1024), local(1024), local(1024), local(1024)
    new_bytes, new_scales, new_minima, new_ds = local(256), local(4 * lanes), local(4 * lanes), local(8)

    @njit(**JIT)
    def quantize_block(x, importance, block):
        costs, values, across, codes = new_costs(), new_values(), new_across(), new_codes()
        if importance:
            importance_weights(x, importance, costs, 256, spread32)
        else:
            for g in range(lanes):
                plain_weights(x + 4 * n * g, costs + 4 * n * g, n)
        transpose(x, values, lanes, n)
        transpose(costs, across, lanes, n)
        scales, minima, ds, flat = new_scales(), new_minima(), new_ds(), new_bytes()
        fit(values, across, codes, scales, minima, ds)
        codes_of(codes, flat, lanes, n)
        pack(block, flat, scales, minima, ds)

    return quantize_block


@njit(**JIT)
def _pack_q2_k(block, codes, scales, minima, ds):
    """Write one block from byte codes, float scales and minima, d and dmin."""
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
def _pack_q4_k(block, codes, scales, minima, ds):
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


export_rows(
    "Q2_K", affine_block(Affine(lanes=16, n=16, top=3, most=15, starts=(1.8, 4.2, 9), passes=2, turns=4), 1, _pack_q2_k)
)
export_rows(
    "Q4_K",
    affine_block(Affine(lanes=8, n=32, top=15, most=63, starts=(13.6, 16.4, 8), passes=2, turns=3), 2, _pack_q4_k),
)
