"""Q2_K rows in tier N (NEON), for Q8_K and float activations; the block and its dot product: ``q2_k``.

A register holds plane p of a group of 16. Planes 1 and 2 are masked where they lie, as 4 and 16 times their codes; all
scales are multiplied to make it 16 times everywhere, and d_x is divided by 16. The four groups of a plane add up in one
register as in ``q4_k_neon``.

Packed buffer, per 256 inputs: 256 codes | 16 i16 (negated sums of the codes of each group) | 4 f32 (0, 0, d_x / 16,
d_x); for float inputs ``fixed.FOUR``, then 16 f32 (negated sums of the inputs of each group).
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS
from .fixed import FOUR, LIMBS_BYTES, inputs_16, make_lanes_pack, store_two_sums
from .neon import dots_16, scaled_differences, widened_dot
from .quantize import make_q8k_pack, store_negated_sums
from .row_kernel import LANES_4, TWO_AT_MOST, rows_of_256
from .vec import F32x4, F32x16, Float, I8x16, I16x4, I16x8, I32x4, I32x16, Int, Val, inline

BLOCK = FORMATS["Q2_K"].block_bytes
_PACKED = 256 + 32 + 16
_PACKED_FLOAT = FOUR.block_bytes + 64
_GROUPS = [2 * plane + 8 * half + i for plane in range(4) for half in range(2) for i in range(2)]
"""The groups plane by plane."""
_SHIFTS = (4, 2, 0, 4)
"""Bits by which the scales of a plane are shifted."""


def _plane(bits: Val, plane: int) -> Val:
    """Return the codes of a plane, times 1, 4, 16 and 1."""
    return bits & (3 << 2 * plane) if plane < 3 else bits >> 6


def _lane_sums(k, header: Val, weights: Val, x: Val, limbs: int) -> list[Val]:
    """Return 16 sum_j s_j dot_j in four lanes, for each limb of the packed inputs."""
    bits = [k.load(I8x16, weights + (16 + 16 * i)) for i in range(4)]
    differences = scaled_differences(k, (header & 0x0F).shuffle(_GROUPS), _SHIFTS)
    sums = [k.zero(I32x4)] * limbs
    for plane, factors in enumerate(differences):
        dots = [k.zero(I32x4)] * limbs
        for i in range(4):
            codes, factor = _plane(bits[i], plane), factors.shuffle([i] * 4)
            for limb, inputs in enumerate(inputs_16(k, x, _GROUPS[4 * plane + i], limbs)):
                dots[limb] = dots_16(k, dots[limb], codes, inputs)
                sums[limb] = sums[limb] + dots[limb] * factor
    return sums


@inline(F32x4, F32x4, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = k.load(I8x16, weights)
    (sums,) = _lane_sums(k, header, weights, x, 1)
    mins = widened_dot(k, header >> 4, *(k.load(I16x8, x + at) for at in (256, 272)))
    d = k.half_to_float(k.load(I16x4, weights + (BLOCK - 8))) * k.load(F32x4, x + 288)
    total = k.fma(sums.to_float(F32x4), d.shuffle([2] * 4), total)
    return k.fma(mins.to_float(F32x4), d.shuffle([3] * 4), total)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Store the negated sums and the scales of a block whose codes are stored already."""
    store_negated_sums(k, target + 256, target, 16)
    k.store(target + 288, scale.splat(F32x4) * [0.0, 0.0, 1 / 16, 1.0])


# -- float activations: see fixed.py
@inline(F32x4, F32x4, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = k.load(I8x16, weights)
    sums = FOUR.total(k, _lane_sums(k, header, weights, x, 3), x + LIMBS_BYTES)
    d = k.half_to_float(k.load(I16x4, weights + (BLOCK - 8)))
    total = k.fma(sums, (d * (1 / 16)).shuffle([2] * 4), total)
    minima = (header >> 4).zext(I32x16).to_float(F32x16) * k.load(F32x16, x + FOUR.block_bytes)
    first, second, third, fourth = (minima.shuffle(range(4 * i, 4 * i + 4)) for i in range(4))
    return k.fma((first + second) + (third + fourth), d.shuffle([3] * 4), total)


_PACK_FLOAT = make_lanes_pack(FOUR, _PACKED_FLOAT, store_two_sums, 8)

FLOAT = rows_of_256(LANES_4, 2, _add_float, BLOCK, _PACK_FLOAT, _PACKED_FLOAT, TWO_AT_MOST)
Q8K = rows_of_256(LANES_4, 2, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
