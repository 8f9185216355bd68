"""Row kernels of IQ2_XXS in tier A: decoding, packed inputs, and the kernel for float inputs (``iq2_xxs_ahead`` has the
one for Q8_K). An *octet* is a group of 8 weights with one codebook index.

Blocks have 256 weights in 66 bytes (model.md 2.3, 10.2).
A group of 32 weights is four codebook indices (one byte each, for eight magnitudes out of 8, 25, 43) and a word with
four 7-bit sign fields and the scale ls; the dot product of a block is d * d_x / 8 * sum_g (2 ls_g + 1) dot_g.

A step decodes two blocks (512 weights, 64 octets) in registers:
    1. A codebook entry is eight 2-bit codes, so two 256-byte tables (low and high byte), four registers each.
    2. Byte permutes and masks look 64 indices up at once.
    3. ``vpmultishiftqb`` moves the 7-bit sign fields to bytes; a bit matrix puts the signs of weights 2k, 2k+1 (the
       eighth is the parity of the seven) at bits 4 and 5, above the two magnitude codes.
    4. That 6-bit index selects 43 + w or 43 - w from a 64-byte register. The accumulator's start value cancels the 43.
    5. A lane of 32 bits holds the four octets of a group, the two blocks alternating. So plane i, byte g is weight i of
       octet g, and int32 lane 2 j + b accumulates exactly group j of block b: no shuffles after the dot products.

Packed buffer, per 512 inputs: 8 planes of 64 codes | 16 f32 (d_x / 2^30) | 16 i32 (-43 * sum of codes). An odd last
block is processed twice, the second time with zero inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from numba import njit, types

from ...formats import FORMATS
from ...formats.codebooks import GRID, MAGNITUDES
from . import x86
from .fixed import limbs, scale_of_32
from .quantize import q8k_scale, round_to_codes, sixteen_sums
from .row_kernel import LANES_16, RowKernel, make_rows, pairs_of_256, records
from .tiers import WIDE_PERMUTES
from .vec import (
    JIT,
    F32x16,
    F32x32,
    Float,
    I8x64,
    I16x16,
    I32x8,
    I32x16,
    I64x8,
    Int,
    Val,
    inline,
)

BLOCK = FORMATS["IQ2_XXS"].block_bytes
PACKED_TWO = 640

# -- q8k
BIAS = MAGNITUDES[2]
CODES = np.searchsorted(MAGNITUDES, GRID).astype(np.int64)
_PLAIN, HIGH_BYTES = ((CODES[:, at : at + 4] << [0, 2, 4, 6]).sum(axis=1) for at in (0, 4))
SIGN_STARTS = [0, 7, 14, 21, 32, 39, 46, 53] * 8


def biased(code: int, sign: int) -> list[int]:
    """Make a table of 64 entries: the code at bits ``code`` and up, its sign at bit ``sign`` -> 43 + w or 43 - w."""
    magnitudes = [MAGNITUDES[min((index >> code) & 3, 2)] for index in range(64)]
    return [BIAS - w if (index >> sign) & 1 else BIAS + w for index, w in enumerate(magnitudes)]


def _by_bits(k, a: Val, b: Val) -> Val:
    """Take even lanes of ``a`` and odd ones of ``b``, without a mask register."""
    return x86.blend_bits(k, k.const(I32x16, [-1, 0] * 8), a, b)


def _alternating_words(k, first: Val, second: Val, adjacent: bool) -> tuple[Val, Val]:
    """Load the index words and the sign words of the blocks at two addresses, alternating between blocks.

    For adjacent blocks, loads that start a word apart need only two blends.
    """
    if adjacent:
        index = _by_bits(k, k.load(I32x16, first + 2), k.load(I32x16, second - 2))
        return index, _by_bits(k, k.load(I32x16, first + 6), k.load(I32x16, second + 2))
    a, b = k.load(I32x16, first + 2), k.load(I32x16, second + 2)
    lanes = [lane for group in range(0, 16, 2) for lane in (group, 16 + group)]
    return a.shuffle(lanes, b), a.shuffle([lane + 1 for lane in lanes], b)


def _both_d(k, first: Val, second: Val, adjacent: bool) -> Val:
    """Return the scales d of two blocks, alternating. Loads repeat 32 bits for nothing, 16 bits by a permute."""
    if not adjacent:
        a, b = (k.load(types.int16, block).splat(I16x16) for block in (first, second))
        return k.half_to_float(a.shuffle([0, 16] * 8, b))
    a, b = (k.load(types.int32, at).splat(I32x8) for at in (first, second - 2))
    return k.half_to_float(x86.blend_bits(k, k.const(I32x8, 0xFFFF), a, b).bits(I16x16))


def look_up(k, table: np.ndarray, index: Val, next_top: Val, top: Val, out: list[Val]) -> Iterator[None]:
    """Look 64 indices up in a table of 256 bytes; ``top`` and ``next_top`` are masks of their two upper bits.

    It yields after each operation; ``out`` receives the result.
    """
    quarters = [k.const(I8x64, table[64 * i : 64 * i + 64].tolist()) for i in range(4)]
    halves = []
    for low, high in (quarters[:2], quarters[2:]):
        if WIDE_PERMUTES:
            halves.append(x86.permute_bytes_2(k, low, high, index))
            yield
            continue
        first_half = x86.permute_bytes(k, low, index)
        yield
        halves.append(k.select(next_top, x86.permute_bytes(k, high, index), first_half))
        yield
    out.append(k.select(top, halves[1], halves[0]))
    yield


def codes(k, first: Val, second: Val, adjacent: bool, out: list[Val], low_bytes: np.ndarray = _PLAIN) -> Iterator[None]:
    """Look up two blocks; ``out`` receives low and high codes, signs, and the scales of the groups, times 2^30.

    ``low_bytes`` says where the four low codes of an octet lie in their byte.

    It yields after each operation, so that others can be emitted in between (``iq2_xxs_ahead``).
    """
    index_words, words = _alternating_words(k, first, second, adjacent)
    index = index_words.bits(I8x64)
    yield
    next_top = (index & 0x40).compare("!=", 0)
    yield
    top = index.compare("<", 0)
    yield
    for table in (low_bytes, HIGH_BYTES):
        yield from look_up(k, table, index, next_top, top, out)
    out.append(x86.multishift(k, k.const(I8x64, SIGN_STARTS), words))
    yield
    d = _both_d(k, first, second, adjacent)
    yield
    # (2 ls + 1) * 2^27: the top four bits unchanged, with a one below them
    scales = ((words & 0xF0000000) | 0x08000000).to_float_unsigned(F32x16)
    out.append(scales * d)  # five times eleven bits: exact
    yield


def run(*emitters: Iterator[None]) -> None:
    """Advance the emitters in turns to their ends."""
    for _ in zip_longest(*emitters):
        pass


def decode_two(k, first: Val, second: Val) -> tuple[list[Val], Val]:
    """Decode the blocks at two addresses to eight planes of 64 unsigned bytes 43 + w, and the scales of the 16 groups,
    times 2^30."""
    state: list[Val] = []
    run(codes(k, first, second, first is not second, state))
    planes: list[Val] = []
    for pair in range(4):
        odd = [2 * pair + 1] if pair < 3 else list(range(7))
        signs = x86.bit_matrix(k, state[2], [[], [], [], [], [2 * pair], odd, [], []])
        nibble = (state[pair // 2].bits(I64x8) >> 4).bits(I8x64) if pair % 2 else state[pair // 2]
        mixed = (nibble & 0x0F) | (signs & 0xF0)
        planes += [x86.permute_bytes(k, k.const(I8x64, biased(*at)), mixed) for at in ((0, 4), (2, 5))]
    return planes, state[3]


def _store_octets(k, target: Val, codes: Val) -> None:
    """Store 32 codes = 4 octets, byte i of each to plane i, at ``target`` within plane 0."""
    turned = codes.shuffle([8 * g + i for i in range(8) for g in range(4)]).bits(I32x8)
    for i in range(8):
        k.store(target + 64 * i, turned.lane(i))


def _make_pack(record: int, passes: int) -> Any:
    """Make ``pack`` of a RowKernel for 512 inputs a ``record``: int8 codes, or three limbs of them."""

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack_lane(k, target, lane, x, scale, inverse):
        """Store codes, scale and offsets of the 32 inputs of lane ``lane``."""
        values, sums = k.load(F32x32, x), []
        parts = [round_to_codes(k, values, inverse)] if passes == 1 else limbs(k, values, inverse.splat(F32x32))
        for number, codes in enumerate(parts):
            _store_octets(k, target + 512 * number + lane * 4, codes)
            low, high = sixteen_sums(k, codes)
            sums.append(low.sext(types.int32) + high.sext(types.int32))
        at = target + 512 * passes + lane * 4
        k.store(at, scale * 2.0**-30)
        k.store(at + 64, sums[0] * -BIAS)
        if passes == 3:
            k.store(at + 128, (sums[1] * 256 + sums[2]) * -BIAS)

    @inline(types.none, Int)
    def clear(k, target):
        for line in range(0, record, 64):
            k.store(target + line, k.zero(I32x16))

    scale_of, groups = (q8k_scale, 8) if passes == 1 else (scale_of_32, 1)

    @njit(**JIT)
    def pack(x, n, buffer):
        if n & 256:
            clear(buffer + (n >> 9) * record)
        for first in range(0, n >> 5, groups):
            scale, inverse = scale_of(x)
            for group in range(first, first + groups):
                pack_lane(buffer + (group >> 4) * record, 2 * (group & 7) + (group >> 3 & 1), x, scale, inverse)
                x += 128

    return pack


pack_q8k = _make_pack(PACKED_TWO, 1)


# -- float activations: see fixed.py
# Packed buffer, per 512 inputs: 8 planes of three limbs | 16 f32 (scale / 2^30) | 16 i32 offsets of the high limb,
# times 43 | 16 i32 offsets of the middle and low limbs. 32 products of 86 with all 24 bits would overflow, so the low
# limb has its own accumulator.
_PACKED_FLOAT = 8 * 3 * 64 + 192


def _two_dots_float(k, total: Val, first: Val, second: Val, x: Val) -> Val:
    planes, scales = decode_two(k, first, second)
    sums = [k.load(I32x16, x + 1600), k.zero(I32x16), k.load(I32x16, x + 1664)]
    for i, plane in enumerate(planes):
        for limb in range(3):
            sums[limb] = x86.dpbusd_512(k, sums[limb], plane, k.load(I8x64, x + 512 * limb + 64 * i))
    upper = (sums[0] << 8) + sums[1]
    dots = k.fma(upper.to_float(F32x16), k.const(F32x16, 256), sums[2].to_float(F32x16))
    return k.fma(dots, scales * k.load(F32x16, x + 1536), total)


FLOAT = RowKernel(
    _make_pack(_PACKED_FLOAT, 3),
    make_rows(LANES_16, 2, *pairs_of_256(_two_dots_float, BLOCK, _PACKED_FLOAT)),
    records(512, _PACKED_FLOAT),
)
