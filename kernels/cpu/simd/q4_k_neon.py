"""Q4_K rows in tiers N and I (NEON), for Q8_K and float activations; the block and its dot product: ``q4_k``.

A sub-block of 32 weights fills two registers, whose ``sdot`` add up in one. They go on adding up over four sub-blocks,
without a new start from zero: with P_j = dot_0 + ... + dot_j,

    sum_j s_j dot_j = sum_j (s_j - s_(j+1)) P_j,  s_4 = 0

so that ``mla`` multiplies P_j by a difference of scales.

Packed buffer, per 256 inputs: 256 codes | 8 i16 (negated sums of the codes of each sub-block) | f32 (d_x); for float
inputs ``fixed_neon``, then 8 f32 (negated sums of the inputs of each sub-block).
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS
from .fixed_neon import LANES_BYTES, inputs_16, lanes_total, make_lanes_pack
from .neon import dots_16, scaled_differences, widened_dot
from .quantize import make_q8k_pack, sixteen_sums
from .row_kernel import LANES_4, TWO_AT_MOST, Part, RowKernel, make_rows, records
from .vec import F32x4, F32x32, Float, I8x16, I8x32, I16x4, I16x8, I32x4, Int, Val, inline

BLOCK = FORMATS["Q4_K"].block_bytes
_PACKED = 256 + 16 + 4
_PACKED_FLOAT = LANES_BYTES + 32


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
    for sub in range(8):
        low, high = sixteen_sums(k, k.load(I8x32, target + 32 * sub))
        k.store(target + 256 + 2 * sub, k.const(types.int16, 0) - low - high)
    k.store(target + 272, scale)


# -- float activations: see fixed_neon.py
@inline(F32x4, F32x4, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    scales, mins = _scales_mins(k, weights)
    sums = lanes_total(k, _lane_sums(k, scales, weights, x, 3), x + (LANES_BYTES - 16))
    d = k.half_to_float(k.load(I16x4, weights))
    total = k.fma(sums, d.shuffle([0] * 4), total)
    low, high = (
        part.zext(I32x4).to_float(F32x4) * k.load(F32x4, x + (LANES_BYTES + 16 * i))
        for i, part in enumerate(mins.shuffle(range(4 * i, 4 * i + 4)) for i in range(2))
    )
    return k.fma(low + high, d.shuffle([1] * 4), total)


@inline(types.none, Int, Int)
def _store_sum(k, target, x):
    """Store the negated sum of 32 inputs."""
    k.store(target, k.const(Float, 0.0) - k.hsum(k.load(F32x32, x)))


FLOAT = RowKernel(
    make_lanes_pack(_PACKED_FLOAT, _store_sum, 4),
    make_rows(LANES_4, 3, Part(256, _add_float, BLOCK, _PACKED_FLOAT), counts=TWO_AT_MOST),
    records(256, _PACKED_FLOAT),
)

Q8K = RowKernel(
    make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish),
    make_rows(LANES_4, 3, Part(256, _add, BLOCK, _PACKED)),
    records(256, _PACKED),
)
