"""Row kernels of Q4_K and Q2_K in tier B (AVX2), for Q8_K and float inputs; ``q4_k`` and ``q2_k`` explain the blocks.

A register holds 32 weights: a sub-block of Q4_K; plane p of one half of 128 of Q2_K, a group of 16 in each 128 bits.
``vpmaddubsw`` multiplies codes and inputs, ``vpmaddwd`` the sums of two by the scale, which ``vpshufb`` spreads from
the (unpacked) header; all groups of a block add up in the same eight int32 lanes.

Packed buffer, per 256 inputs: 256 codes | 8 f32 (d_x) | i16 negated sums of the codes of each group; for float inputs
the limbs of ``fixed``, then f32 negated sums of the inputs of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from numba import types

from ...formats import FORMATS
from . import x86
from .fixed import BLOCK_BYTES, LIMBS_BYTES, make_lanes_pack, store_sum, store_two_sums, total_of_limbs
from .quantize import make_q8k_pack, store_negated_sums
from .row_kernel import LANES_8, RowKernel, rows_of_256
from .vec import F32x8, Float, I8x16, I8x32, I16x8, I16x16, I32x4, I32x8, Int, Val, inline


class _Block(NamedTuple):
    """How a format's block is decoded.

    header      load (and unpack) the scales and minima, 16 bytes
    codes       decode eight registers of codes, in the order of the weights
    scales      spread the scales of each register to words, one for two weights
    minima      m_g times the sums of codes at an address, in eight lanes
    float_minima    the same for sums of inputs
    d           where d and dmin lie
    store_sums  store the sums of 32 inputs for ``float_minima``
    """

    header: Callable[[Any, Val], Val]
    codes: Callable[[Any, Val], Iterator[Val]]
    scales: Callable[[Any, Val], Iterator[Val]]
    minima: Callable[[Any, Val, Val], Val]
    float_minima: Callable[[Any, Val, Val], Val]
    d: int
    store_sums: Any


def _unpack_header(k, weights: Val) -> Val:
    """Unpack the twelve scale bytes of Q4_K to 16 bytes: s0..s3 | m0..m3 | s4..s7 | m4..m7."""
    words = k.load(I32x4, weights)
    low = (words.shuffle([1, 2, 3, 3]) >> [0, 0, 0, 4]) & [0x3F3F3F3F, 0x3F3F3F3F, 0x0F0F0F0F, 0x0F0F0F0F]
    high = (words.shuffle([0, 0, 1, 2]) >> 2) & [0, 0, 0x30303030, 0x30303030]
    return (low | high).bits(I8x16)


def _nibbles(k, weights: Val) -> Iterator[Val]:
    for pair in range(4):
        bits = k.load(I8x32, weights + 16 + 32 * pair)
        yield bits & 0x0F
        yield (bits.bits(I16x16) >> 4).bits(I8x32) & 0x0F


def _planes(k, weights: Val) -> Iterator[Val]:
    for half in range(2):
        bits = k.load(I8x32, weights + 16 + 32 * half)
        for plane in range(4):
            yield (bits.bits(I16x16) >> 2 * plane).bits(I8x32) & 3


def _spread(k, header: Val, places: list[tuple[int, int]]) -> Iterator[Val]:
    """Spread the bytes at each pair of places to the words of both halves of a register."""
    both = header.cat(header)
    for low, high in places:
        yield x86.shuffle_bytes(k, both, k.const(I8x32, [low, 0x80] * 8 + [high, 0x80] * 8)).bits(I16x16)  # 0x80: zero


def minima_of_8(k, header: Val) -> Val:
    """Return the minima of Q4_K's unpacked header as int32."""
    return header.shuffle([4, 5, 6, 7, 12, 13, 14, 15]).zext(I32x8)


def _float_minima_of_16(k, header: Val, sums: Val) -> Val:
    mins = (header.bits(I16x8) >> 4).bits(I8x16) & 0x0F
    low, high = (
        mins.shuffle(range(8 * i, 8 * i + 8)).zext(I32x8).to_float(F32x8) * k.load(F32x8, sums + 32 * i)
        for i in range(2)
    )
    return low + high


Q4_K_BLOCK = _Block(
    header=_unpack_header,
    codes=_nibbles,
    scales=lambda k, header: _spread(k, header, [(i, i) for i in (0, 1, 2, 3, 8, 9, 10, 11)]),
    minima=lambda k, header, sums: minima_of_8(k, header) * k.load(I16x8, sums).sext(I32x8),
    float_minima=lambda k, header, sums: minima_of_8(k, header).to_float(F32x8) * k.load(F32x8, sums),
    d=0,
    store_sums=store_sum,
)
Q2_K_BLOCK = _Block(
    header=lambda k, weights: k.load(I8x16, weights),
    codes=_planes,
    scales=lambda k, header: _spread(k, header & 0x0F, [(2 * i, 2 * i + 1) for i in range(8)]),
    minima=lambda k, header, sums: x86.madd_256(k, header.zext(I16x16) >> 4, k.load(I16x16, sums)),
    float_minima=_float_minima_of_16,
    d=80,
    store_sums=store_two_sums,
)


def _kernels(name: str, block: _Block, lines: int) -> tuple[RowKernel, RowKernel]:
    """Make the kernels of a format for Q8_K and for float activations."""
    fmt = FORMATS[name]
    groups = 256 // fmt.group
    packed, packed_float = 288 + 2 * groups, BLOCK_BYTES + 4 * groups

    def add(k, total, weights, x):
        header = block.header(k, weights)
        (sums,) = x86.scaled_dots_256(k, block.codes(k, weights), block.scales(k, header), x, 1)
        d, dmin = x86.two_halves_256(k, weights + block.d)
        scale = k.load(F32x8, x + 256)
        total = k.fma(sums.to_float(F32x8), d * scale, total)
        return k.fma(block.minima(k, header, x + 288).to_float(F32x8), dmin * scale, total)

    def add_float(k, total, weights, x):
        header = block.header(k, weights)
        sums = x86.scaled_dots_256(k, block.codes(k, weights), block.scales(k, header), x, 3)
        d, dmin = x86.two_halves_256(k, weights + block.d)
        total = k.fma(total_of_limbs(k, sums, x + LIMBS_BYTES), d, total)
        return k.fma(block.float_minima(k, header, x + BLOCK_BYTES), dmin, total)

    @inline(types.none, Int, Int, Float)
    def finish(k, target, half, scale):
        """Store the scale and the negated sums of a block whose codes are stored already."""
        k.store(target + 256, scale.splat(F32x8))
        store_negated_sums(k, target + 288, target, fmt.group)

    pack = make_q8k_pack(packed, lambda sub: 32 * sub, finish)
    pack_float = make_lanes_pack(packed_float, block.store_sums, 4 * groups // 8)
    kinds = F32x8, F32x8, Int, Int
    return (
        rows_of_256(LANES_8, lines, inline(*kinds)(add), fmt.block_bytes, pack, packed),
        rows_of_256(LANES_8, lines, inline(*kinds)(add_float), fmt.block_bytes, pack_float, packed_float),
    )


Q4_K, Q4_K_FLOAT = _kernels("Q4_K", Q4_K_BLOCK, 3)
Q2_K, Q2_K_FLOAT = _kernels("Q2_K", Q2_K_BLOCK, 2)
