"""Round the inputs of products to int8 as in mode ds4 (model.md 10.2), vectorized, bit for bit equal to the formulas.

    A8    per 32: d = max|x| / 127, codes = rint(x / d)
    Q8_K  per 256: m = the first element of largest magnitude, with its sign; codes = rint(x * (-127 / m)),
          d = 1 / (-127 / m)

Codes stay within -127..127. A block whose scale is too small to have a finite inverse rounds to zeros. A block with a
NaN or an infinity gets d = NaN, so that the error propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, types

from .helpers import load_float, store_float
from .vec import JIT, Emit, F32x32, Float, I8x32, I16x32, I32x8, I32x16, I32x32, Int, Val, inline

# Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low bits of the float.
_ROUNDER = 1.5 * 2.0**23


def round_to_codes(k: Emit, x: Val, inverse: Val) -> Val:
    """Return rint(x * inverse) of 32 floats as I8x32, for |x * inverse| < 2^21. The product rounds first, as in C."""
    return (x * inverse.splat(F32x32) + _ROUNDER).bits(I32x32).trunc(I8x32)


def sixteen_sums(k: Emit, codes: Val) -> tuple[Val, Val]:
    """Return the sums of the lower and the upper 16 of 32 codes, as i16."""
    wide = codes.sext(I16x32)
    low, high = wide.shuffle(range(16)), wide.shuffle(range(16, 32))
    return k.fold(low, lambda a, b: a + b), k.fold(high, lambda a, b: a + b)


def largest_and_poison(k: Emit, runs: Sequence[Val]) -> tuple[Val, Val]:
    """Return two vectors for the lanes of all ``runs``: max|x|, and zeros in which a lane is NaN if one of its values
    was not finite (the maximum of such a lane may be NaN, too)."""
    largest = k.abs(runs[0])
    poison = runs[0] * 0.0
    for run in runs[1:]:
        largest = k.maximum(k.abs(run), largest)
        poison = poison + run * 0.0
    return largest, poison


@inline(Float, Int)
def largest_of_32(k, x):
    """Return max|x| of 32 floats; NaN if one is not finite."""
    values = k.load(F32x32, x)
    return k.fold(k.abs(values), k.maximum) + k.hsum(values * 0.0)


@inline(types.none, Int, Int, Float)
def store_codes(k, target, x, inverse):
    """Round 32 floats to 32 bytes at ``target``."""
    k.store(target, round_to_codes(k, k.load(F32x32, x), inverse))


def store_negated_sums(k: Emit, target: Val, codes: Val, group: int) -> None:
    """Store the negated sums of every ``group`` (16 or 32) of 256 codes, as i16."""
    for sub in range(8):
        low, high = sixteen_sums(k, k.load(I8x32, codes + 32 * sub))
        zero = k.const(types.int16, 0)
        for i, value in enumerate((zero - low, zero - high) if group == 16 else (zero - low - high,)):
            k.store(target + (16 * sub * 4 // group + 2 * i), value)


@inline(types.none, Int, Int)
def store_sums(k, target, codes):
    """Store two int16 sums of 16 codes each."""
    low, high = sixteen_sums(k, k.load(I8x32, codes))
    k.store(target, low)
    k.store(target + 2, high)


@inline(types.UniTuple(Float, 3), Int)
def extremes_of_256(k, x):
    """Return (largest, smallest, 0 or NaN) of 256 floats."""
    blocks = [k.load(F32x32, x + 128 * i) for i in range(8)]
    high = low = blocks[0]
    poison = blocks[0] * 0.0
    for block in blocks[1:]:
        high, low = k.maximum(block, high), k.minimum(block, low)
        poison = poison + block * 0.0
    return k.fold(high, k.maximum), k.fold(low, k.minimum), k.hsum(poison)


@njit(**JIT)
def a8_scale(x):
    """Return (d, 1/d) of the 32 floats at address ``x``; the inverse is 0 where it would not be finite."""
    d = largest_of_32(x) / np.float32(127)
    if d > 0:
        inverse = np.float32(1) / d
        if inverse < np.inf:
            return d, inverse
    return d, np.float32(0)


@njit(**JIT)
def q8k_scale(x):
    """Return (d, 1/d) of the 256 floats at address ``x``; both 0 for a block of zeros."""
    high, low, poison = extremes_of_256(x)
    peak = high
    if -low > high:
        peak = low
    elif -low == high:  # both signs reach the largest magnitude: the first one counts
        at = x
        while abs(load_float(at)) != high and poison == 0:
            at += 4
        peak = load_float(at)
    peak += poison
    if peak == 0:
        return np.float32(0), np.float32(0)
    inverse = np.float32(-127) / peak
    if abs(inverse) == np.inf:
        return np.float32(0), np.float32(0)
    return np.float32(1) / inverse, inverse


@inline(types.none, Int)
def _clear_second(k, target):
    """Zero the second block of a pair: codes, scale lanes, sums."""
    for offset in (*range(256, 512, 64), 544, 608):
        k.store(target + offset, k.zero(I32x16 if offset < 512 else I32x8))


def make_q8k_pack(record: int, place: Callable[[Any], Any], finish: Any, pair: int = 0) -> Any:
    """Make ``pack`` of a RowKernel: a record of ``record`` bytes for every block of 256, or for every two (``pair`` =
    1).

    32 codes go to ``place(sub)`` of their 256; ``finish(record, half, scale)`` adds the rest for block 0 or 1 of it. A
    pair without a second block is filled with zeros: 256 codes, 32 bytes at 544 and 32 at 608.
    """
    place = njit(**JIT)(place)

    @njit(**JIT)
    def pack(x, n, buffer):
        for block in range(n >> 8):
            target, half = buffer + (block >> pair) * record, block & pair
            scale, inverse = q8k_scale(x)
            for sub in range(8):
                store_codes(target + 256 * half + place(sub), x + 128 * sub, inverse)
            finish(target, half, scale)
            x += 1024
        if n & (256 * pair):
            _clear_second(buffer + (n >> 9) * record)

    return pack


@njit(**JIT)
def quantize_a8(x, n, codes, scales):
    """Quantize n floats at ``x`` to n int8 at ``codes`` and n/32 float32 at ``scales``. n % 32 == 0."""
    for block in range(n // 32):
        d, inverse = a8_scale(x + 128 * block)
        store_codes(codes + 32 * block, x + 128 * block, inverse)
        store_float(scales + 4 * block, d)


@njit(**JIT)
def quantize_q8k(x, n, codes, scales, sums):
    """Quantize n floats at ``x`` to n int8 at ``codes``, n/256 float32 at ``scales``, n/16 int16 at ``sums``. n % 256
    == 0."""
    for block in range(n // 256):
        source = x + 1024 * block
        d, inverse = q8k_scale(source)
        store_float(scales + 4 * block, d)
        for part in range(8):
            target = codes + 256 * block + 32 * part
            store_codes(target, source + 128 * part, inverse)
            store_sums(sums + 32 * block + 4 * part, target)
