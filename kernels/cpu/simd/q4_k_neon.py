"""Q4_K rows in tiers N and I (NEON with dotprod), for Q8_K activations; the block and its dot product: ``q4_k``.

A sub-block of 32 weights fills two registers, whose ``sdot`` add up in one. They go on adding up over four sub-blocks,
without a new start from zero: with P_j = dot_0 + ... + dot_j,

    sum_j s_j dot_j = sum_j (s_j - s_(j+1)) P_j,  s_4 = 0

so that ``mla`` multiplies P_j by a difference of scales.

Packed buffer, per 256 inputs: 256 codes | 8 i16 (negated sums of the codes of each sub-block) | f32 (d_x).
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS
from .neon import dots_16, scaled_differences, widened_dot
from .quantize import make_q8k_pack, sixteen_sums
from .row_kernel import LANES_4, Part, RowKernel, make_rows, records
from .vec import F32x4, Float, I8x16, I8x32, I16x4, I16x8, I32x4, Int, Val, inline

BLOCK = FORMATS["Q4_K"].block_bytes
_PACKED = 256 + 16 + 4


def _scales_mins(k, weights: Val) -> tuple[Val, Val]:
    """Unpack the twelve scale bytes: the eight scales and the eight minima, as bytes."""
    words = k.load(I32x4, weights)  # d and dmin, then the twelve bytes
    low = (words.shuffle([1, 2, 3, 3]) >> [0, 0, 0, 4]) & [0x3F3F3F3F, 0x3F3F3F3F, 0x0F0F0F0F, 0x0F0F0F0F]
    high = (words.shuffle([0, 0, 1, 2]) >> 2) & [0, 0, 0x30303030, 0x30303030]
    both = (low | high).bits(I8x16)
    return (both.shuffle([*range(at, at + 4), *range(at + 8, at + 12)]) for at in (0, 4))


@inline(F32x4, F32x4, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    scales, mins = _scales_mins(k, weights)
    sums = k.zero(I32x4)
    for half, factors in enumerate(scaled_differences(k, scales)):
        dots = k.zero(I32x4)
        for pair in range(2):
            at = 64 * half + 32 * pair
            packed = [k.load(I8x16, weights + (16 + at + 16 * i)) for i in range(2)]
            for j, codes in enumerate(([part & 0x0F for part in packed], [part >> 4 for part in packed])):
                for i, part in enumerate(codes):
                    dots = dots_16(k, dots, part, k.load(I8x16, x + (2 * at + 32 * j + 16 * i)))
                sums = sums + dots * factors.shuffle([2 * pair + j] * 4)
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


Q8K = RowKernel(
    make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish),
    make_rows(LANES_4, 3, Part(256, _add, BLOCK, _PACKED)),
    records(256, _PACKED),
)
