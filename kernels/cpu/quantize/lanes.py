"""Vector operations of the quantizers: each lane has one group of weights, so a step handles all groups of a block.

A block is first transposed: value i of group g goes to ``t[i * lanes + g]``. A per-group result (its scale, which of
two candidates is better) is then a lane of a vector, without branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit, types

from ...formats import FORMATS
from ..simd.helpers import load_float, store_float
from ..simd.vec import Emit, F32x8, F32x16, Float, Int, Val, Vec, constant, inline
from ..tasks.lang import FAST, JIT, f32p
from ..tasks.registry import export

TINY = 1e-30
"""Scales below this count as zero: their reciprocals would overflow."""

FLOOR = np.float32(1e-6)
"""Minimum importance of a weight relative to the mean of its block, so that even an unused weight keeps about its
value."""

_NEAREST = 12582912.0  # 1.5 * 2^23: adding it leaves no fraction bits, so the sum is rounded to an integer

LANES = {8: F32x8, 16: F32x16}


def like(k: Emit, a: Val, value: float) -> Val:
    """Return a constant of the type of ``a``."""
    return Val(k, constant(a.ir.type, value))


def nearest(k: Emit, x: Val) -> Val:
    """Round to the nearest integer, ties to even, for |x| < 2^22, without library calls on any target."""
    return (x + _NEAREST) - _NEAREST


def clamped(k: Emit, x: Val, low: float, high: float) -> Val:
    """Clamp to low..high; NaN becomes ``low``."""
    return k.minimum(k.maximum(x, like(k, x, low)), like(k, x, high))


def inverse(k: Emit, x: Val) -> Val:
    """Return 1 / x, or 0 where |x| < ``TINY``."""
    usable = k.abs(x).compare(">", TINY)
    return k.select(usable, like(k, x, 1.0) / k.select(usable, x, like(k, x, 1.0)), like(k, x, 0.0))


class LaneOps:
    """Vector operations on ``lanes`` lanes, compiled for Numba."""

    def __init__(self, lanes: int):
        F: Vec = LANES[lanes]
        self.vec = F
        self.load = inline(F, Int)(lambda k, address: k.load(F, address))
        self.store = inline(types.none, Int, F)(lambda k, address, value: k.store(address, value))
        self.splat = inline(F, Float)(lambda k, value: value.splat(F))
        self.zero = inline(F)(lambda k: k.zero(F))
        self.lower = inline(F, F, Int)(lambda k, a, address: k.minimum(a, k.load(F, address)))
        self.upper = inline(F, F, Int)(lambda k, a, address: k.maximum(a, k.load(F, address)))
        self.add_product = inline(F, F, F, F)(lambda k, total, a, b: k.fma(a, b, total))
        self.times = inline(F, F, F)(lambda k, a, b: a * b)
        self.add = inline(F, F, F)(lambda k, a, b: a + b)
        self.total = inline(Float, F)(lambda k, a: k.hsum(a))
        self.largest = inline(Float, F)(lambda k, a: k.fold(a, k.maximum))
        self.where_greater = inline(F, F, F, F, F)(lambda k, a, b, yes, no: k.select(a.compare(">", b), yes, no))


@njit(**JIT)
def transpose(source, target, groups, n):
    """Transpose ``groups`` runs of ``n`` floats at ``source`` to (n, groups) at ``target``."""
    for g in range(groups):
        for i in range(n):
            store_float(target + 4 * (i * groups + g), load_float(source + 4 * (g * n + i)))


@njit(**JIT)
def codes_of(source, target, groups, n):
    """Store transposed float codes at ``source`` as bytes in weight order at ``target``."""
    for g in range(groups):
        for i in range(n):
            put_byte(target + g * n + i, load_float(source + 4 * (i * groups + g)))


@inline(types.none, Int, Float)
def put_byte(k, address, value):
    """Store a float 0 .. 255 as a byte."""
    k.store(address, value.to_int(types.int32).trunc(types.int8))


@inline(types.none, Int, types.int64)
def store_byte(k, address, value):
    """Store the low byte of ``value`` at ``address``."""
    k.store(address, value.trunc(types.int8))


@inline(types.int64, Int)
def load_byte(k, address):
    """Load the byte at ``address``, 0 to 255."""
    return k.load(types.int8, address).zext(types.int64)


@njit(**FAST)
def mean_square(x, n):
    """Return the mean square of n floats."""
    x = f32p(x)
    total = np.float32(0)
    for i in range(n):
        total += x[i] * x[i]
    return total / np.float32(n)


@njit(**FAST)
def importance_weights(x, importance, out, n, factor):
    """Store the costs of errors with known importance: importance * sqrt(factor * mean x^2 + x^2), over a block of n.

    The root favours large weights a little, which generalizes better than the plain importance of a calibration text
    (docs/reference/quantize.md). A block without any importance has equal base costs.
    """
    x, importance, out = f32p(x), f32p(importance), f32p(out)
    total = np.float32(0)
    mean = np.float32(0)
    for i in range(n):
        total += x[i] * x[i]
        mean += importance[i]
    total *= factor / np.float32(n)
    mean /= np.float32(n)
    if mean > np.float32(0):
        scale, base = np.float32(1) / mean, FLOOR
    else:
        scale, base = np.float32(0), np.float32(1)
    for i in range(n):
        out[i] = (importance[i] * scale + base) * math.sqrt(total + x[i] * x[i])


@njit(**FAST)
def plain_weights(x, out, n):
    """Store the costs of errors without importance: |x| plus the rms of the group of n."""
    x, out = f32p(x), f32p(out)
    total = np.float32(0)
    for i in range(n):
        total += x[i] * x[i]
    rms = math.sqrt(total / np.float32(n))
    for i in range(n):
        out[i] = rms + abs(x[i])


def export_rows(fmt: str, quantize_block: Callable[[int, int, int], None]) -> None:
    """Export ``quantize.FMT`` made from ``quantize_block(x, importance, block)``: addresses of a block's floats, of
    their importance or 0, and of the output block."""
    size, block_bytes = FORMATS[fmt].block_elems, FORMATS[fmt].block_bytes

    @export(f"quantize.{fmt}", 5)
    def quantize(x, rows, cols, importance, out):
        """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
        for r in range(rows):
            for first in range(0, cols, size):
                quantize_block(x + 4 * (r * cols + first), importance + 4 * first if importance else 0, out)
                out += block_bytes
