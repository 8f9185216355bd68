"""Float activations for integer dot products: fixed point in three int8 limbs (tiers A, B, N and I).

An integer dot instruction multiplies 64 weights at once (32 in tier B, 16 in N), a float one 16 (8, 4), and only after
two conversions. So the float kernels of the K and IQ formats write x = scale * (B^2 high + B middle + low), with one
scale for 16 to 64 inputs, and take three integer dot products, exact in int32. The error is at most 2^-23 of the
largest of those inputs (2^-22 in Q2_K of tier A), the size of one float32 rounding of it.

In tier B, B is 254, so that no limb is -128, which ``vpsignb`` cannot negate, elsewhere 256. In tiers B, N and I the
inputs that share a scale, 32 or 64, are those whose products add up in one int32 lane (``LaneLimbs``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from .quantize import largest_and_poison, largest_of_32
from .vec import JIT, Emit, F32x4, F32x8, F32x32, Float, I8x16, I8x32, I32x32, Int, Val, Vec, inline

LARGEST = 8_355_000
"""Greatest |x / scale|: 127 * 65536 + 127 * 256 + 127, less some room for rounding."""

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


class LaneLimbs(NamedTuple):
    """How 256 inputs become limbs, four of which a lane of an integer dot product adds up.

    Packed: per 32 inputs 32 high, 32 middle and 32 low limbs; after 256 of them the scales of the lanes.

    kind        of the lane sums as floats: of 32 inputs in order, lane i takes the fours i, i + lanes, ...
    base        of the limbs, which ``split(k, x, inverse)`` makes of F32x32
    largest     greatest |x / scale|: 127 * (base^2 + base + 1), less some room for rounding
    """

    kind: Vec
    base: int
    largest: int
    split: Callable[[Emit, Val, Val], tuple[Val, Val, Val]]

    @property
    def block_bytes(self) -> int:
        """Bytes of 256 packed inputs."""
        return LIMBS_BYTES + 4 * self.kind.lanes

    def store(self, k: Emit, target: Val, scales: Val, runs: list[Val]) -> None:
        """Store 256 inputs, given as eight F32x32 in the order of the weight decoder: limbs and lane scales."""
        largest, poison = largest_and_poison(k, runs)
        for distance in (1, 2) if self.kind.lanes == 8 else (1, 2, 16):
            largest = k.maximum(largest.shuffle([i ^ distance for i in range(32)]), largest)
        inverse = k.const(F32x32, float(self.largest)) / largest
        inverse = k.select(largest.compare(">", float(SMALLEST)), inverse, k.zero(F32x32))
        for i, run in enumerate(runs):
            for limb, codes in enumerate(self.split(k, run, inverse)):
                k.store(target + 32 * (3 * i + limb), codes)
        scale = largest * (1 / self.largest) + k.hsum(poison).splat(F32x32)
        k.store(scales, scale.shuffle(range(0, 4 * self.kind.lanes, 4)))

    def total(self, k: Emit, sums: list[Val], scales: Val) -> Val:
        """Return the lane sums of products with 256 inputs, from those of the three limbs."""
        high, middle, low = (part.to_float(self.kind) for part in sums)
        whole = k.fma(k.fma(high, k.const(self.kind, self.base), middle), k.const(self.kind, self.base), low)
        return whole * k.load(self.kind, scales)


FOUR = LaneLimbs(F32x4, 256, LARGEST, limbs)
EIGHT = LaneLimbs(F32x8, 254, 8_225_000, _even_limbs)


def inputs_16(k: Emit, x: Val, register: int, count: int) -> list[Val]:
    """Load inputs 16 * register .. 16 * register + 15 of a block: the codes, or ``count`` = 3 limbs of them."""
    at = 32 * count * (register // 2) + 16 * (register % 2)
    return [k.load(I8x16, x + (at + 32 * limb)) for limb in range(count)]


def make_lanes_pack(
    lanes: LaneLimbs, packed: int, store_sums: Any = None, sums_bytes: int = 0, order: Sequence[int] = range(32)
) -> Any:
    """Make ``pack`` of a RowKernel of blocks of 256 inputs: ``lanes``, then sums for the block's minima.

    packed      bytes of a packed block
    store_sums  function (target, x) that stores those of 32 inputs, ``sums_bytes`` of them; None: there are no minima
    order       which of 32 inputs comes at each place
    """

    @inline(types.none, Int, Int)
    def pack_block(k, x, target):
        """Pack the 256 inputs at ``x``."""
        runs = [k.load(F32x32, x + 128 * i) for i in range(8)]
        lanes.store(k, target, target + LIMBS_BYTES, [run.shuffle(order) for run in runs])

    at, with_sums = lanes.block_bytes, store_sums is not None
    add_sums = store_sums or pack_block

    @njit(**JIT)
    def pack(x, n, buffer):
        for _ in range(n >> 8):
            pack_block(x, buffer)
            if with_sums:
                for sub in range(8):
                    add_sums(buffer + at + sums_bytes * sub, x + 128 * sub)
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
