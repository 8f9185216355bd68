"""Q2_K rows in tier B (AVX2), for Q8_K and float activations; the block and its dot product: ``q2_k``.

A register holds plane p of one half of 128: 32 weights, a group of 16 in each 128-bit half. ``vpmaddubsw`` multiplies
codes and inputs, ``vpmaddwd`` the sums of two by the 4-bit scales, which ``vpshufb`` spreads from the header; all
groups of a block add up in the same eight int32 lanes.

Packed buffer, per 256 inputs: 256 codes | 8 f32 (d_x) | 16 i16 (negated sums of the codes of each group); for float
inputs the limbs of ``fixed``, then 16 f32 (negated sums of the inputs of each group).
"""

from __future__ import annotations

from collections.abc import Iterator

from numba import types

from ...formats import FORMATS
from . import x86
from .fixed import BLOCK_BYTES, LIMBS_BYTES, make_lanes_pack, store_two_sums, total_of_limbs
from .quantize import make_q8k_pack, store_negated_sums
from .row_kernel import LANES_8, rows_of_256
from .vec import F32x8, Float, I8x16, I8x32, I16x8, I16x16, I32x8, Int, Val, inline

BLOCK = FORMATS["Q2_K"].block_bytes
_PACKED = 256 + 32 + 32
_PACKED_FLOAT = BLOCK_BYTES + 64


def _planes(k, weights: Val) -> Iterator[Val]:
    """Decode the codes of a block to eight registers, in the order of its weights."""
    for half in range(2):
        bits = k.load(I8x32, weights + 16 + 32 * half)
        for plane in range(4):
            yield (bits.bits(I16x16) >> 2 * plane).bits(I8x32) & 3


def _scales(k, header: Val) -> Iterator[Val]:
    """Spread the scales of each register of ``_planes`` to words, one for two weights."""
    nibbles = header.cat(header) & 0x0F
    for i in range(8):
        places = [2 * i, 0x80] * 8 + [2 * i + 1, 0x80] * 8  # 0x80: a zero byte
        yield x86.shuffle_bytes(k, nibbles, k.const(I8x32, places)).bits(I16x16)


@inline(F32x8, F32x8, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = k.load(I8x16, weights)
    (sums,) = x86.scaled_dots_256(k, _planes(k, weights), _scales(k, header), x, 1)
    mins = x86.madd_256(k, header.zext(I16x16) >> 4, k.load(I16x16, x + 288))
    d, dmin = x86.two_halves_256(k, weights + 80)
    scale = k.load(F32x8, x + 256)
    total = k.fma(sums.to_float(F32x8), d * scale, total)
    return k.fma(mins.to_float(F32x8), dmin * scale, total)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Store the scale and the negated sums of a block whose codes are stored already."""
    k.store(target + 256, scale.splat(F32x8))
    store_negated_sums(k, target + 288, target, 16)


# -- float activations: see fixed.py
@inline(F32x8, F32x8, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = k.load(I8x16, weights)
    sums = x86.scaled_dots_256(k, _planes(k, weights), _scales(k, header), x, 3)
    mins = (header.bits(I16x8) >> 4).bits(I8x16) & 0x0F
    low, high = (
        mins.shuffle(range(8 * i, 8 * i + 8)).zext(I32x8).to_float(F32x8) * k.load(F32x8, x + BLOCK_BYTES + 32 * i)
        for i in range(2)
    )
    d, dmin = x86.two_halves_256(k, weights + 80)
    return k.fma(low + high, dmin, k.fma(total_of_limbs(k, sums, x + LIMBS_BYTES), d, total))


_PACK_FLOAT = make_lanes_pack(_PACKED_FLOAT, store_two_sums, 8)

FLOAT = rows_of_256(LANES_8, 2, _add_float, BLOCK, _PACK_FLOAT, _PACKED_FLOAT)
Q8K = rows_of_256(LANES_8, 2, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
