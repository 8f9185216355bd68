"""Quantize weights to Q8_0, Q4_0 and Q5_0: one f16 scale per 32 weights, in vectors of one block.

Without importance no search is needed: blocks follow ggml bit for bit, so that files are identical whichever program
wrote them. Codes use the scale before it is rounded to f16; Q8_0 rounds halves away from zero, the others map the
weight of greatest magnitude, the first of several, to the least code, and round halves up. With importance ``single``
searches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from ..simd.vec import F32x32, Float, I8x32, I32x32, Int, inline
from ..tasks.lang import JIT, f32p, store_f16
from ..tasks.registry import export
from .single import fitted_rows, pack_4, pack_5
from .symmetric import Symmetric

WEIGHTS = 32
SEARCH_4 = Symmetric(lanes=8, n=WEIGHTS, low=-8, high=7, spread=0.9, starts=10, passes=2)
SEARCH_5 = Symmetric(lanes=8, n=WEIGHTS, low=-16, high=15, spread=0.9, starts=10, passes=2)

ONE, ZERO = np.float32(1), np.float32(0)
SMALLEST = np.float32(2.94e-39)
"""Scales below this count as zero: their reciprocals would be infinite."""


@inline(Float, Int)
def _greatest(k, x):
    return k.fold(k.load(F32x32, x), k.maximum)


@inline(Float, Int)
def _least(k, x):
    return k.fold(k.load(F32x32, x), k.minimum)


@inline(types.none, Int, Float, Int)
def _store_bytes(k, x, inv, out):
    """Store x * inv as signed bytes, halves away from zero."""
    scaled = k.load(F32x32, x) * inv.splat(F32x32)
    size = k.abs(scaled)
    whole = (size + 0.5).to_int(I32x32).to_float(F32x32)
    # adding 0.5 may round up to the next integer where the fraction is just below one half
    whole = k.select((whole - size).compare(">", 0.5), whole - 1.0, whole)
    codes = k.select(scaled.compare("<", 0.0), k.zero(F32x32) - whole, whole)
    k.store(out, codes.to_int(I32x32).trunc(I8x32))


@export("quantize.Q8_0", 5)
def q8_0(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; importance is ignored."""
    for _ in range(rows * cols // WEIGHTS):
        d = max(_greatest(x), -_least(x)) / np.float32(127)
        store_f16(out, d)
        _store_bytes(x, ONE / d if d > SMALLEST else ZERO, out + 2)
        x += 4 * WEIGHTS
        out += 34


@njit(**JIT)
def _extreme(x):
    """Return the first of the 32 floats of greatest magnitude."""
    high, low = _greatest(x), _least(x)
    if high > -low:
        return high
    if high < -low:
        return low
    values = f32p(x)
    first = 0
    while first < WEIGHTS - 1 and abs(values[first]) != high:
        first += 1
    return values[first]


def _block(bits: int) -> Any:
    """Compile a block quantizer (x, out) of codes of ``bits`` bits: four of them in nibbles, the fifth apart."""
    half, most = 1 << bits - 1, (1 << bits) - 1
    half32 = np.float32(-half)
    codes_at = 2 if bits == 4 else 6

    @inline(types.none, Int, Float, Int)
    def store_codes(k, x, inv, out):
        codes = (k.load(F32x32, x) * inv.splat(F32x32) + (half + 0.5)).to_int(I32x32)
        codes = k.select(codes.compare(">", most), k.const(I32x32, most), codes).trunc(I8x32)
        if bits == 5:
            k.store(out + 2, (codes & 16).compare("!=", 0).bits(types.int32))
        low, high = codes.shuffle(range(16)), codes.shuffle(range(16, 32))
        k.store(out + codes_at, (low & 15) | (high << 4))

    @njit(**JIT)
    def block(x, out):
        d = _extreme(x) / half32
        store_f16(out, d)
        store_codes(x, ONE / d if abs(d) > SMALLEST else ZERO, out)

    return block


_block_4, _block_5 = _block(4), _block(5)
_fitted_4 = fitted_rows("Q4_0", SEARCH_4, 1, 1.0, pack_4)
_fitted_5 = fitted_rows("Q5_0", SEARCH_5, 1, 1.0, pack_5)


@export("quantize.Q4_0", 5)
def q4_0(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    if importance:
        _fitted_4(x, rows, cols, importance, out)
        return
    for _ in range(rows * cols // WEIGHTS):
        _block_4(x, out)
        x += 4 * WEIGHTS
        out += 18


@export("quantize.Q5_0", 5)
def q5_0(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    if importance:
        _fitted_5(x, rows, cols, importance, out)
        return
    for _ in range(rows * cols // WEIGHTS):
        _block_5(x, out)
        x += 4 * WEIGHTS
        out += 22
