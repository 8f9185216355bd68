"""Q4_K rows in tier B (AVX2), for Q8_K and float activations; the block and its dot product: ``q4_k``.

A register holds a sub-block of 32 weights. ``vpmaddubsw`` multiplies codes and inputs, ``vpmaddwd`` the sums of two by
the 6-bit scale, which ``vpshufb`` spreads from the unpacked header; all sub-blocks add up in the same eight int32
lanes.

Packed buffer, per 256 inputs: 256 codes | 8 f32 (d_x) | 8 i16 (negated sums of the codes of each sub-block); for float
inputs the limbs of ``fixed``, then 8 f32 (negated sums of the inputs of each sub-block).
"""

from __future__ import annotations

from collections.abc import Iterator

from numba import types

from ...formats import FORMATS
from . import x86
from .fixed import BLOCK_BYTES, LIMBS_BYTES, make_lanes_pack, store_sum, total_of_limbs
from .quantize import make_q8k_pack, store_negated_sums
from .row_kernel import LANES_8, rows_of_256
from .vec import F32x8, Float, I8x16, I8x32, I16x8, I16x16, I32x4, I32x8, Int, Val, inline

BLOCK = FORMATS["Q4_K"].block_bytes
_PACKED = 256 + 32 + 16
_PACKED_FLOAT = BLOCK_BYTES + 32
_SCALES = [0, 1, 2, 3, 8, 9, 10, 11]  # bytes of the unpacked header
_MINS = [4, 5, 6, 7, 12, 13, 14, 15]


def _unpack_header(k, weights: Val) -> Val:
    """Unpack the twelve scale bytes to 16 bytes: s0..s3 | m0..m3 | s4..s7 | m4..m7."""
    words = k.load(I32x4, weights)
    low = (words.shuffle([1, 2, 3, 3]) >> [0, 0, 0, 4]) & [0x3F3F3F3F, 0x3F3F3F3F, 0x0F0F0F0F, 0x0F0F0F0F]
    high = (words.shuffle([0, 0, 1, 2]) >> 2) & [0, 0, 0x30303030, 0x30303030]
    return (low | high).bits(I8x16)


def _codes(k, weights: Val) -> Iterator[Val]:
    """Decode the codes of a block to eight registers, in the order of its weights."""
    for pair in range(4):
        bits = k.load(I8x32, weights + 16 + 32 * pair)
        yield bits & 0x0F
        yield (bits.bits(I16x16) >> 4).bits(I8x32) & 0x0F


def _scales(k, header: Val) -> Iterator[Val]:
    """Spread the scale of each sub-block to every word of a register."""
    both = header.cat(header)
    for place in _SCALES:
        yield x86.shuffle_bytes(k, both, k.const(I8x32, [place, 0x80] * 16)).bits(I16x16)  # 0x80: a zero byte


@inline(F32x8, F32x8, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = _unpack_header(k, weights)
    (sums,) = x86.scaled_dots_256(k, _codes(k, weights), _scales(k, header), x, 1)
    mins = header.shuffle(_MINS).zext(I32x8) * k.load(I16x8, x + 288).sext(I32x8)
    d, dmin = x86.two_halves_256(k, weights)
    scale = k.load(F32x8, x + 256)
    total = k.fma(sums.to_float(F32x8), d * scale, total)
    return k.fma(mins.to_float(F32x8), dmin * scale, total)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Store the scale and the negated sums of a block whose codes are stored already."""
    k.store(target + 256, scale.splat(F32x8))
    store_negated_sums(k, target + 288, target, 32)


# -- float activations: see fixed.py
@inline(F32x8, F32x8, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    header = _unpack_header(k, weights)
    sums = x86.scaled_dots_256(k, _codes(k, weights), _scales(k, header), x, 3)
    mins = header.shuffle(_MINS).zext(I32x8).to_float(F32x8) * k.load(F32x8, x + BLOCK_BYTES)
    d, dmin = x86.two_halves_256(k, weights)
    return k.fma(mins, dmin, k.fma(total_of_limbs(k, sums, x + LIMBS_BYTES), d, total))


_PACK_FLOAT = make_lanes_pack(_PACKED_FLOAT, store_sum, 4)

FLOAT = rows_of_256(LANES_8, 3, _add_float, BLOCK, _PACK_FLOAT, _PACKED_FLOAT)
Q8K = rows_of_256(LANES_8, 3, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
