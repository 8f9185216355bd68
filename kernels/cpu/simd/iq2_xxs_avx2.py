"""IQ2_XXS rows in tier B (AVX2), for Q8_K and float activations; the block and its dot product: ``iq2_xxs``.

Two groups of 32 weights make a pair, one in each 128-bit half of a register; a half holds two octets. A block has four
pairs of groups, (0, 2), (1, 3), (4, 6), (5, 7): where one ``vshufps`` puts their words with signs and ls.
    1. Magnitudes: 8-byte loads from a table of 2 KB. A gather is slower, and so are bytes of an index one by one:
       loads are what binds.
    2. Signs, of all 32 octets at once: 7-bit fields are moved to bytes, the parity is looked up. ``vpshufb`` repeats
       the byte of an octet, ``vpmullw`` shifts each weight's bit to the top, ``vpsignb`` applies it.
    3. Weights plus 43 are unsigned, so that ``vpmaddubsw`` multiplies them by the inputs as they are. The sums of four
       products start at -43 times the sum of their inputs, and fit in 16 bits after the last one.
    4. ``vpmaddwd`` multiplies them by 2 ls + 1; all pairs add up in the same eight int32 lanes.

Packed buffer, per 256 inputs: 256 codes in the order of pairs | 64 i16 (offsets) | 8 f32 (d_x / 8); for float inputs
the limbs of ``fixed`` in the order of pairs | 3 * 64 i16 (offsets) | 8 f32 (lane scales).
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from ...formats import FORMATS
from ...formats.iq2_xxs import GRID, MAGNITUDES
from . import x86
from .fixed import store_lane_limbs, total_of_limbs
from .helpers import broadcast_half
from .quantize import make_q8k_pack
from .row_kernel import LANES_8, rows_of_256
from .vec import JIT, F32x8, F32x16, F64x4, Float, I8x16, I8x32, I16x16, I32x8, Int, Val, inline

BLOCK = FORMATS["IQ2_XXS"].block_bytes
_PACKED = 256 + 128 + 32
_PACKED_FLOAT = 3 * (256 + 128) + 32
_BIAS = MAGNITUDES[2]
_PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7))
_OCTETS = np.ascontiguousarray(GRID).view(np.int64)[:, 0].tolist()
_PARITY = [-127 if i.bit_count() & 1 else 1 for i in range(16)] * 2


def _words(k, block: Val) -> Val:
    """Load the eight words with signs and ls: four of the groups 0, 1, 4, 5, then of 2, 3, 6, 7."""
    low, high = k.load(I32x8, block + 2), k.load(I32x8, block + 34)
    return low.shuffle([1, 3, 9, 11, 5, 7, 13, 15], high)


def _signs(k, words: Val) -> list[Val]:
    """Return two bytes for each octet, first of pairs 0 and 1, then of 2 and 3: bits 1 to 7 of the first are the signs
    of weights 0 to 6, of the second those of 1 to 7; bit 0 is set."""
    fields = words.bits(I16x16).shuffle([i + 16 * (i & 1) for i in range(16)], (words << 2).bits(I16x16))
    seven = fields.bits(I8x32).shuffle([i + 32 * (i & 1) for i in range(32)], (fields << 1).bits(I8x32))
    even = seven + seven
    nibble = (even ^ (even.bits(I16x16) >> 4).bits(I8x32)) & 0x0F
    odd = (seven & 0x7E) | x86.shuffle_bytes(k, k.const(I8x32, _PARITY), nibble)
    even = even | 1
    halves = [[h + i // 2 + i % 2 * 32 for h in (8 * half, 16 + 8 * half) for i in range(16)] for half in range(2)]
    return [even.shuffle(lanes, odd) for lanes in halves]


def _indices(k, block: Val, pair: int) -> list[list[Val]]:
    """Load the codebook indices of a pair of groups, four of each: one load for four is cheaper than four."""
    words = [k.load(types.int32, block + 2 + 8 * group).zext(Int) for group in _PAIRS[pair]]
    return [[(word >> 8 * octet) & 0xFF for octet in range(4)] for word in words]


def _weights(k, indices: list[list[Val]], signs: list[Val], pair: int, half: int) -> Val:
    """Return 43 + w of octets 2 half and 2 half + 1 of both groups of a pair, as unsigned bytes."""
    table = k.table("iq2_xxs_octets", "i64", _OCTETS)
    octets = [group[2 * half + i] for group in indices for i in range(2)]
    magnitudes = k.gather(F64x4, [k.load(types.float64, table + (octet << 3)) for octet in octets]).bits(I8x32)
    first = 8 * (pair & 1) + 4 * half
    lane = [first + 2 * (i // 8) + i % 2 for i in range(16)]
    spread = x86.shuffle_bytes(k, signs[pair >> 1], k.const(I8x32, lane * 2))
    negative = (spread.bits(I16x16) * ([64, 16, 4, 1] * 4)).bits(I8x32)  # shifts the sign of its weight to bit 7
    return x86.sign_bytes_256(k, magnitudes, negative) + _BIAS


def _lane_sums(k, weights: Val, x: Val, limbs: int) -> list[Val]:
    """Return sum_g (2 ls_g + 1) dot_g in eight lanes, for each limb of the packed inputs."""
    words = _words(k, weights)
    signs = _signs(k, words)
    scales = (words >> 27) | 1
    scales = scales | (scales << 16)
    sums = [k.zero(I32x8)] * limbs
    for pair in range(4):
        indices = _indices(k, weights, pair)
        dots = [k.load(I16x16, x + 256 * limbs + 32 * (limbs * pair + limb)) for limb in range(limbs)]
        for half in range(2):
            unsigned = _weights(k, indices, signs, pair, half)
            for limb in range(limbs):
                inputs = k.load(I8x32, x + 32 * (limbs * (2 * pair + half) + limb))
                dots[limb] = dots[limb] + x86.madd_bytes_256(k, unsigned, inputs)
        scale = scales.shuffle([pair] * 4 + [4 + pair] * 4).bits(I16x16)
        sums = [total + x86.madd_256(k, part, scale) for total, part in zip(sums, dots, strict=True)]
    return sums


@inline(F32x8, F32x8, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    (sums,) = _lane_sums(k, weights, x, 1)
    return k.fma(sums.to_float(F32x8), broadcast_half(k, weights, F32x8) * k.load(F32x8, x + 384), total)


def _store_offsets(k, target: Val, limbs: int) -> None:
    """Store -43 times the sums of four codes that a word of ``_lane_sums`` adds up, behind the codes at ``target``."""
    for pair in range(4):
        for limb in range(limbs):
            codes = [k.load(I8x32, target + 32 * (limbs * (2 * pair + half) + limb)) for half in range(2)]
            first, last = (x86.madd_bytes_256(k, k.const(I8x32, _BIAS), part) for part in codes)
            k.store(target + 256 * limbs + 32 * (limbs * pair + limb), k.zero(I16x16) - first - last)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Bring the codes of a record into the order of pairs, and store offsets and scale."""
    groups = [[k.load(I8x16, target + 32 * group + 16 * half) for half in range(2)] for group in range(8)]
    for pair, (first, second) in enumerate(_PAIRS):
        for half in range(2):
            k.store(target + 64 * pair + 32 * half, groups[first][half].cat(groups[second][half]))
    _store_offsets(k, target, 1)
    k.store(target + 384, (scale * 0.125).splat(F32x8))


# -- float activations: see fixed.py
@inline(F32x8, F32x8, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    d = broadcast_half(k, weights, F32x8) * 0.125
    return k.fma(total_of_limbs(k, _lane_sums(k, weights, x, 3), x + _PACKED_FLOAT - 32), d, total)


@inline(types.none, Int, Int)
def _pack_block(k, x, target):
    """Pack 256 inputs in the order of pairs."""
    octets = [[k.load(F32x16, x + 128 * group + 64 * half) for half in range(2)] for group in range(8)]
    runs = [octets[a][half].cat(octets[b][half]) for a, b in _PAIRS for half in range(2)]
    store_lane_limbs(k, target, target + _PACKED_FLOAT - 32, runs)
    _store_offsets(k, target, 3)


@njit(**JIT)
def _pack_float(x, n, buffer):
    for _ in range(n >> 8):
        _pack_block(x, buffer)
        buffer += _PACKED_FLOAT
        x += 1024


FLOAT = rows_of_256(LANES_8, 2, _add_float, BLOCK, _pack_float, _PACKED_FLOAT)
Q8K = rows_of_256(LANES_8, 2, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
