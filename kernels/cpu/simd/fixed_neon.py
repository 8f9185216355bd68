"""Float activations for integer dot products in tiers N and I: three int8 limbs of base 256, as in ``fixed``.

A lane of the integer sums takes inputs i of a block of 256 with i % 16 // 4 = lane, so these 64 share a scale.

Packed: per 32 inputs 32 high, 32 middle and 32 low limbs; after 256 of them four f32, the lane scales.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from .fixed import LARGEST, SMALLEST, limbs
from .vec import JIT, Emit, F32x4, F32x32, I8x16, Int, Val, inline

LANES_BYTES = 3 * 256 + 16


def inputs_16(k: Emit, x: Val, register: int, count: int) -> list[Val]:
    """Load inputs 16 * register .. 16 * register + 15 of a block: the codes, or ``count`` = 3 limbs of them."""
    at = 32 * count * (register // 2) + 16 * (register % 2)
    return [k.load(I8x16, x + (at + 32 * limb)) for limb in range(count)]


@inline(types.none, Int, Int)
def pack_lanes(k, x, target):
    """Pack the 256 inputs at ``x`` in their own order."""
    runs = [k.load(F32x32, x + 128 * i) for i in range(8)]
    largest = k.abs(runs[0])
    poison = runs[0] * 0.0
    for run in runs[1:]:
        largest = k.maximum(k.abs(run), largest)
        poison = poison + run * 0.0
    for distance in (1, 2, 16):
        largest = k.maximum(largest.shuffle([i ^ distance for i in range(32)]), largest)
    inverse = k.const(F32x32, float(LARGEST)) / largest
    inverse = k.select(largest.compare(">", float(SMALLEST)), inverse, k.zero(F32x32))
    for i, run in enumerate(runs):
        for limb, codes in enumerate(limbs(k, run, inverse)):
            k.store(target + 32 * (3 * i + limb), codes)
    scale = largest * (1 / LARGEST) + k.hsum(poison).splat(F32x32)
    k.store(target + 768, scale.shuffle(range(0, 16, 4)))


def make_lanes_pack(packed: int, store_sums: Any = None, sums_bytes: int = 0) -> Any:
    """Make ``pack`` of a RowKernel of blocks of 256 inputs: ``pack_lanes``, then sums for the block's minima.

    packed      bytes of a packed block
    store_sums  function (target, x) that stores those of 32 inputs, ``sums_bytes`` of them; None: there are no minima
    """
    if store_sums is None:

        @njit(**JIT)
        def pack(x, n, buffer):
            for _ in range(n >> 8):
                pack_lanes(x, buffer)
                buffer += packed
                x += 1024

        return pack

    @njit(**JIT)
    def pack_with_sums(x, n, buffer):
        for _ in range(n >> 8):
            pack_lanes(x, buffer)
            for sub in range(8):
                store_sums(buffer + LANES_BYTES + sums_bytes * sub, x + 128 * sub)
            buffer += packed
            x += 1024

    return pack_with_sums


def lanes_total(k: Emit, sums: list[Val], scales: Val) -> Val:
    """Return the lane sums of products with 256 inputs, from those of the three limbs (I32x4)."""
    high, middle, low = (part.to_float(F32x4) for part in sums)
    whole = k.fma(k.fma(high, k.const(F32x4, 256.0), middle), k.const(F32x4, 256.0), low)
    return whole * k.load(F32x4, scales)
