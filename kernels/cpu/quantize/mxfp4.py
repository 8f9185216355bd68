"""Quantize weights to MXFP4: a power of two per 32 weights, and floats of four bits (kernels/formats/fp4.py).

There are few scales to choose from: of the three around the weight of greatest magnitude, the one with the least
weighted error. The levels 0, 1, 2, 3, 4, 6, 8 and 12 are multiples of 1 up to 4, of 2 up to 8, and of 4 from there on,
so that rounding needs no table.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from ..simd.vec import F32x32, Float, I8x32, I32x32, Int, inline
from ..tasks.lang import JIT, local
from .lanes import export_rows, importance_weights, nearest, store_byte

ONE = np.float32(1)
LEAST, MOST = 2, 253
"""Exponent bytes to use: 2^(e - 128) and its reciprocal are normal numbers."""

_costs = local(128)


@inline(Int, Int)
def _exponent(k, x):
    """Return the exponent bits of the greatest magnitude of 32 floats."""
    peak = k.fold(k.abs(k.load(F32x32, x)), k.maximum)
    return (peak.bits(types.int32) >> 23).zext(Int)


def _power(k, exponent):
    """Return 2^(exponent - 127), of bits 1 to 254."""
    return (exponent << 23).trunc(types.int32).bits(Float)


def _rounded(k, x, e):
    """Return |x| / 2^(e - 128), the nearest level to it, and that level's number."""
    size = k.minimum(k.abs(x) * _power(k, k.const(Int, 255) - e).splat(F32x32), k.const(F32x32, 1e6))
    ones, twos, fours = (nearest(k, size * step) for step in (1.0, 0.5, 0.25))
    fours = k.minimum(fours, k.const(F32x32, 3.0))
    small, large = size.compare("<", 4.0), size.compare(">", 8.0)
    level = k.select(small, ones, k.select(large, fours * 4.0, twos * 2.0))
    return size, level, k.select(small, ones, k.select(large, fours + 4.0, twos + 2.0))


@inline(Float, Int, Int, Int)
def _error(k, x, costs, e):
    """Return the weighted square error of 32 floats with scale 2^(e - 128)."""
    size, level, _ = _rounded(k, k.load(F32x32, x), e)
    miss = (size - level) * _power(k, e - 1).splat(F32x32)
    return k.hsum(miss * miss * k.load(F32x32, costs))


@inline(types.none, Int, Int, Int)
def _store_codes(k, x, e, out):
    values = k.load(F32x32, x)
    *_, number = _rounded(k, values, e)
    negative = k.select(values.compare("<", 0.0), k.const(F32x32, 8.0), k.zero(F32x32))
    codes = (number + k.select(number.compare(">", 0.0), negative, k.zero(F32x32))).to_int(I32x32).trunc(I8x32)
    k.store(out, codes.shuffle(range(16)) | (codes.shuffle(range(16, 32)) << 4))


_ones = inline(types.none, Int)(lambda k, costs: k.store(costs, k.const(F32x32, 1.0)))


@njit(**JIT)
def _block(x, importance, out):
    costs = _costs()
    if importance:
        importance_weights(x, importance, costs, 32, ONE)
    else:
        _ones(costs)
    # the greatest weight lies in 8 to 16 scales
    middle = _exponent(x) - 2
    best, least = max(middle, LEAST), np.float32(np.inf)
    for by in range(-1, 2):
        e = min(max(middle + by, LEAST), MOST)
        error = _error(x, costs, e)
        if error < least:
            best, least = e, error
    store_byte(out, best)
    _store_codes(x, best, out + 1)


export_rows("MXFP4", _block)
