"""Q4_K rows in tier N (NEON), for Q8_K and float activations; the block and its dot product: ``q4_k``.

A sub-block of 32 weights fills two registers, whose ``sdot`` add up in one. They go on adding up over four sub-blocks,
without a new start from zero: with P_j = dot_0 + ... + dot_j,

    sum_j s_j dot_j = sum_j (s_j - s_(j+1)) P_j,  s_4 = 0

so that ``mla`` multiplies P_j by a difference of scales.

Packed buffer, per 256 inputs: 256 codes | 8 i16 (negated sums of the codes of each sub-block) | f32 (d_x); for float
inputs ``fixed.FOUR``, then 8 f32 (negated sums of the inputs of each sub-block).
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS
from .fixed import FOUR, LIMBS_BYTES, inputs_16, make_lanes_pack, store_sum
from .neon import dots_16, scaled_differences, widened_dot
from .quantize import make_q8k_pack, store_negated_sums
from .row_kernel import LANES_4, TWO_AT_MOST, rows_of_256
from .vec import F32x4, Float, I8x16, I16x4, I16x8, I32x4, Int, Val, inline

BLOCK = FORMATS["Q4_K"].block_bytes
_PACKED = 256 + 16 + 4
_PACKED_FLOAT = FOUR.block_bytes + 32


def _scales_mins(k, weights: Val) -> tuple[Val, Val]:
    """Unpack the twelve scale bytes: the eight scales and the eight minima, as bytes."""
    words = k.load(I32x4, weights)  # d and dmin, then the twelve bytes
    low = (words.shuffle([1, 2, 3, 3]) >> [0, 0, 0, 4]) & [0x3F3F3F3F, 0x3F3F3F3F, 0x0F0F0F0F, 0x0F0F0F0F]
    high = (words.shuffle([0, 0, 1, 2]) >> 2) & [0, 0, 0x30303030, 0x30303030]
    both = (low | high).bits(I8x16)
    return (both.shuffle([*range(at, at + 4), *range(at + 8, at + 12)]) for at in (0, 4))


def _lane_sums(k, scales: Val, weights: Val, x: Val, limbs: int) -> list[Val]:
    """Return sum_j s_j dot_j in four lanes, for each limb of the packed inputs."""
    sums = [k.zero(I32x4)] * limbs
    for half, factors in enumerate(scaled_differences(k, scales)):
        dots = [k.zero(I32x4)] * limbs
        for pair in range(2):
            at = 64 * half + 32 * pair
            packed = [k.load(I8x16, weights + (16 + at + 16 * i)) for i in range(2)]
            for j, codes in enumerate(([part & 0x0F for part in packed], [part >> 4 for part in packed])):
                for i, part in enumerate(codes):
                    for limb, inputs in enumerate(inputs_16(k, x, at // 8 + 2 * j + i, limbs)):
                        dots[limb] = dots_16(k, dots[limb], part, inputs)
                factor = factors.shuffle([2 * pair + j] * 4)
                sums = [total + dot * factor for total, dot in zip(sums, dots, strict=True)]
    return sums


@inline(F32x4, F32x4, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    scales, mins = _scales_mins(k, weights)
    (sums,) = _lane_sums(k, scales, weights, x, 1)
    d = k.half_to_float(k.load(I16x4, weights)) * k.load(Float, x + 272).splat(F32x4)
    total = k.fma(sums.to_float(F32x4), d.shuffle([0] * 4), total)
    return k.fma(widened_dot(k, mins, k.load(I16x8, x + 256)).to_float(F32x4), d.shuffle([1] * 4), total)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Store the negated sums and the scale of a block whose codes are stored already."""
    store_negated_sums(k, target + 256, target, 32)
    k.store(target + 272, scale)


# -- float activations: see fixed.py
@inline(F32x4, F32x4, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    scales, mins = _scales_mins(k, weights)
    sums = FOUR.total(k, _lane_sums(k, scales, weights, x, 3), x + LIMBS_BYTES)
    d = k.half_to_float(k.load(I16x4, weights))
    total = k.fma(sums, d.shuffle([0] * 4), total)
    low, high = (
        part.zext(I32x4).to_float(F32x4) * k.load(F32x4, x + (FOUR.block_bytes + 16 * i))
        for i, part in enumerate(mins.shuffle(range(4 * i, 4 * i + 4)) for i in range(2))
    )
    return k.fma(low + high, d.shuffle([1] * 4), total)


_PACK_FLOAT = make_lanes_pack(FOUR, _PACKED_FLOAT, store_sum, 4)

FLOAT = rows_of_256(LANES_4, 3, _add_float, BLOCK, _PACK_FLOAT, _PACKED_FLOAT, TWO_AT_MOST)
Q8K = rows_of_256(LANES_4, 3, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
