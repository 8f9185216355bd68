"""Packing float inputs for integer dot products: as fixed-point numbers in three int8 pieces (*limbs*), tiers A and B.

An integer dot instruction multiplies 64 weights at once (32 in tier B), a float one 16 (8), and only after two
conversions. So the float kernels of the K and IQ formats write x = scale * (B^2 high + B middle + low), with one
scale for 16 to 64 inputs, and take three integer dot products, exact in int32. The error is at most 2^-23 of the
largest of those inputs (2^-22 in Q2_K of tier A), the size of one float32 rounding of it.

B is 256 in tier A; in tier B it is 254, so that no limb is -128, which ``vpsignb`` cannot negate. In tier B the 32
inputs that share a scale are those whose products add up in one int32 lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from .quantize import largest_and_poison, largest_of_32
from .vec import JIT, Emit, F32x8, F32x32, Float, I8x32, I32x32, Int, Val, inline

LARGEST = 8_355_000
"""Greatest |x / scale|: 127 * 65536 + 127 * 256 + 127, less a margin for rounding."""

SMALLEST = np.float32(1e-31)  # below this, LARGEST / x would overflow; such inputs count as zeros


def limbs(k: Emit, x: Val, inverse: Val) -> tuple[Val, Val, Val]:
    """Split rint(x * inverse), F32x32 each, into limbs (high, middle, low) as I8x32; low and middle in -128..127."""
    whole = k.call("llvm.rint.v32f32", F32x32, x * inverse).to_int(I32x32)
    low = whole.trunc(I8x32)
    rest = (whole - low.sext(I32x32)).shift_right_signed(8)
    middle = rest.trunc(I8x32)
    return (rest - middle.sext(I32x32)).shift_right_signed(8).trunc(I8x32), middle, low


@njit(**JIT)
def scale_of_32(x):
    """Return (scale, 1 / scale) of the 32 floats at address ``x``; the inverse is 0 where it would not be finite."""
    largest = largest_of_32(x)
    scale = largest / np.float32(LARGEST)
    if largest > SMALLEST:
        return scale, np.float32(LARGEST) / largest
    return scale, np.float32(0)


# -- limbs of 256 inputs whose products add up in few lanes
LIMBS_BYTES = 3 * 256


def _even_limbs(k: Emit, x: Val, inverse: Val) -> tuple[Val, Val, Val]:
    """Split rint(x * inverse), F32x32 each, into limbs (high, middle, low) of base 254 as I8x32, in -127..127."""
    parts = []
    rest = k.call("llvm.rint.v32f32", F32x32, x * inverse)  # whole numbers below 2^23: every step is exact
    for unit in (254 * 254, 254):
        part = k.call("llvm.rint.v32f32", F32x32, rest * (1 / unit))
        rest = rest - part * float(unit)
        parts.append(part)
    high, middle, low = (part.to_int(I32x32).trunc(I8x32) for part in (*parts, rest))
    return high, middle, low


BLOCK_BYTES = LIMBS_BYTES + 4 * 8
"""Bytes of 256 packed inputs: per 32 of them 32 high, 32 middle and 32 low limbs, then the scales of the lanes."""

_LARGEST_EVEN = 8_225_000  # 127 * (254^2 + 254 + 1), less a margin for rounding


def store_lane_limbs(k: Emit, target: Val, scales: Val, runs: list[Val]) -> None:
    """Store 256 inputs, given as eight F32x32 in the order of the weight decoder: limbs and lane scales.

    Inputs 4 i .. 4 i + 3 of every run, which lane i of a dot product multiplies, share a scale.
    """
    largest, poison = largest_and_poison(k, runs)
    for distance in (1, 2):
        largest = k.maximum(largest.shuffle([i ^ distance for i in range(32)]), largest)
    inverse = k.const(F32x32, float(_LARGEST_EVEN)) / largest
    inverse = k.select(largest.compare(">", float(SMALLEST)), inverse, k.zero(F32x32))
    for i, run in enumerate(runs):
        for limb, codes in enumerate(_even_limbs(k, run, inverse)):
            k.store(target + 32 * (3 * i + limb), codes)
    scale = largest * (1 / _LARGEST_EVEN) + k.hsum(poison).splat(F32x32)
    k.store(scales, scale.shuffle(range(0, 32, 4)))


def total_of_limbs(k: Emit, sums: list[Val], scales: Val) -> Val:
    """Return the lane sums (F32x8) of products with 256 inputs, from those of the three limbs."""
    high, middle, low = (part.to_float(F32x8) for part in sums)
    base = k.const(F32x8, 254)
    return k.fma(k.fma(high, base, middle), base, low) * k.load(F32x8, scales)


def make_lanes_pack(packed: int, store_sums: Any, sums_bytes: int) -> Any:
    """Make ``pack`` of a RowKernel of blocks of 256 inputs: limbs, then sums for the block's minima.

    packed      bytes of a packed block
    store_sums  function (target, x) that stores those of 32 inputs, ``sums_bytes`` of them
    """

    @inline(types.none, Int, Int)
    def pack_block(k, x, target):
        """Pack the 256 inputs at ``x``."""
        runs = [k.load(F32x32, x + 128 * i) for i in range(8)]
        store_lane_limbs(k, target, target + LIMBS_BYTES, runs)

    @njit(**JIT)
    def pack(x, n, buffer):
        for _ in range(n >> 8):
            pack_block(x, buffer)
            for sub in range(8):
                store_sums(buffer + BLOCK_BYTES + sums_bytes * sub, x + 128 * sub)
            buffer += packed
            x += 1024

    return pack


@inline(types.none, Int, Int)
def store_sum(k, target, x):
    """Store the negated sum of 32 inputs."""
    k.store(target, k.const(Float, 0.0) - k.hsum(k.load(F32x32, x)))


@inline(types.none, Int, Int)
def store_two_sums(k, target, x):
    """Store the negated sums of the two groups of 16 of 32 inputs."""
    values = k.load(F32x32, x)
    for group in range(2):
        half = values.shuffle(range(16 * group, 16 * group + 16))
        k.store(target + 4 * group, k.const(Float, 0.0) - k.hsum(half))
