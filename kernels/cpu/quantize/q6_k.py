"""Quantize weights to Q6_K: sixteen groups of 16 with signed 8-bit scales (kernels/formats/q6_k.py has the layout)."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..simd.helpers import load_float
from ..simd.vec import Float, inline
from ..tasks.lang import JIT, local, round_f16, store_f16
from .blocks import export_rows, weigher
from .lanes import (
    TINY,
    clamped,
    codes_of,
    load_byte,
    nearest,
    store_byte,
    transpose,
)
from .symmetric import Fitter, Symmetric

SEARCH = Symmetric(lanes=16, n=16, reach=32, spread=0.8, starts=7, passes=1)
TURNS = 3
FLOOR = 0.5
"""Floor of the error costs without importance, in rms of the group; lower than for other formats, because codes are
fine."""
LARGEST_F16 = np.float32(65504)

_fit = Fitter(SEARCH)
_weigh = weigher(16, 16, 1, FLOOR)
_fit_groups, _sums, _error, _codes, _reciprocal = _fit.fit_groups, _fit.sums, _fit.error, _fit.codes, _fit.reciprocal
_words = _fit.words
F = _words.vec
_load, _store, _splat, _zero = _words.load, _words.store, _words.splat, _words.zero
_total, _times, _where_greater, _add = _words.total, _words.times, _words.where_greater, _words.add
_values, _costs, _across, _coded = local(1024), local(1024), local(1024), local(1024)
_bytes, _lanes = local(256), local(64)


@inline(F, F, Float)
def _integers(k, scales, inv):
    return nearest(k, clamped(k, scales * inv.splat(F), -128.0, 127.0))


@inline(F, F, Float)
def _moved(k, scales, by):
    return clamped(k, scales + by.splat(F), -128.0, 127.0)


@inline(F, F, Float)
def _scaled(k, scales, d):
    return scales * d.splat(F)


@njit(**JIT)
def _half(d):
    return round_f16(min(max(d, -LARGEST_F16), LARGEST_F16))


@njit(**JIT)
def fit_block(x, w, scales_at):
    """Fit and return d (exact in f16); store the integer scales at ``scales_at`` as floats."""
    scale = _fit_groups(x, w)
    _store(scales_at, scale)
    extreme = np.float32(0)
    for j in range(16):
        s = load_float(scales_at + 4 * j)
        if abs(s) > abs(extreme):
            extreme = s
    d = _half(extreme / np.float32(-128))
    if not abs(d) > np.float32(TINY):
        _store(scales_at, _zero())
        return np.float32(0)
    integers = _integers(scale, np.float32(1) / d)
    best, best_integers, best_d = np.float32(3e38), integers, d
    for turn in range(TURNS):
        least, chosen = _splat(np.float32(3e38)), integers
        for by in range(-1, 2):
            tried = _moved(integers, np.float32(by))
            error = _error(x, w, _scaled(tried, d))
            chosen = _where_greater(least, error, tried, chosen)
            least = _where_greater(least, error, error, least)
        integers = chosen
        error_now = _total(least)
        if error_now < best:
            best, best_integers, best_d = error_now, integers, d
        if turn < TURNS - 1:
            sxl, sll = _sums(x, w, _reciprocal(_scaled(integers, d)))
            numerator, denominator = _total(_times(integers, sxl)), _total(_times(_times(integers, integers), sll))
            if denominator > np.float32(TINY):
                refitted = _half(numerator / denominator)
                if abs(refitted) > np.float32(TINY):
                    d = refitted
    _store(scales_at, best_integers)
    return best_d


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


@njit(**JIT)
def quantize_block(x, importance, block):
    """Quantize 256 floats."""
    costs, values, across, coded, flat, scales = _costs(), _values(), _across(), _coded(), _bytes(), _lanes()
    _weigh(x, importance, costs)
    transpose(x, values, 16, 16)
    transpose(costs, across, 16, 16)
    d = fit_block(values, across, scales)
    _codes(values, _scaled(_load(scales), d), coded)
    codes_of(coded, flat, 16, 16, np.float32(SEARCH.reach))
    pack(block, flat, scales, d)


export_rows("Q6_K", quantize_block)
