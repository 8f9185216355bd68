"""Row kernels of IQ2_XXS, IQ3_XXS and IQ2_S in tier B (AVX2), for Q8_K and float inputs (``kernels/formats`` has the
layout of blocks). An *octet* is a group of 8 weights, a *quad* one of 4, of which each has one codebook index.

Two groups of 32 weights make a pair, one in each 128-bit half of a register; a half holds two octets. A block has four
pairs of groups, (0, 2), (1, 3), (4, 6), (5, 7): where one ``vshufps`` puts the words of IQ2_XXS with signs and ls.
    1. Magnitudes: loads of 8 bytes, or of 4 for quads, from the table. A gather is slower, and so are bytes of an index
       one by one: loads are what binds.
    2. Signs, of all 32 octets at once: 7-bit fields are moved to bytes, the parity is looked up. ``vpshufb`` repeats
       the byte of an octet, ``vpmullw`` shifts each weight's bit to the top, ``vpsignb`` applies it to the input.
    3. ``vpmaddubsw`` multiplies magnitudes and inputs; the sums of four products fit in 16 bits.
    4. ``vpmaddwd`` multiplies them by 2 ls + 1; all pairs add up in the same eight int32 lanes.

Packed buffer, per 256 inputs: 256 codes in the order of pairs, for float inputs the limbs of ``fixed`` | 8 f32 (d_x
times the factor of the format; for float inputs lane scales).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from ...formats import FORMATS, Format
from . import x86
from .fixed import store_lane_limbs, total_of_limbs
from .helpers import broadcast_half
from .quantize import make_q8k_pack
from .row_kernel import LANES_8, RowKernel, rows_of_256
from .vec import JIT, F32x8, F32x16, F64x4, Float, I8x16, I8x32, I16x16, I32x8, Int, Val, Vec, inline

_I64x4 = Vec("i64", 4)
_PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7))
_ORDER = [0, 1, 4, 5, 2, 3, 6, 7]
"""Groups, four a half of a register, as they become pairs."""
_PARITY = [-127 if i.bit_count() & 1 else 1 for i in range(16)] * 2


class _Book(NamedTuple):
    """How the blocks of a format are decoded.

    header    function that returns signs and sub-scales of a block: two bytes for each octet, those of pairs 0 and 1 in
              one register, of 2 and 3 in the other; 2 ls + 1 twice in each word, in ``_ORDER``, for both halves of the
              groups or for each
    indices   function that returns the codebook indices of a group's octets (or quads)
    """

    fmt: Format
    header: Callable[[Any, Val], tuple[list[Val], list[Val]]]
    indices: Callable[[Any, Val], Callable[[int], list[Val]]]


# -- signs and scales
def _paired(even: Val, odd: Val) -> list[Val]:
    """Join two bytes for each octet, ordered as ``_ORDER``. Bits 1 to 7 of the first are the signs of weights 0 to 6,
    of the second those of 1 to 7; bit 0 is set."""
    halves = [[h + i // 2 + i % 2 * 32 for h in (8 * half, 16 + 8 * half) for i in range(16)] for half in range(2)]
    return [(even | 1).shuffle(lanes, odd | 1) for lanes in halves]


def _of_words(k, words: Val) -> tuple[list[Val], list[Val]]:
    """Unpack words of four fields of 7 signs and ls."""
    fields = words.bits(I16x16).shuffle([i + 16 * (i & 1) for i in range(16)], (words << 2).bits(I16x16))
    seven = fields.bits(I8x32).shuffle([i + 32 * (i & 1) for i in range(32)], (fields << 1).bits(I8x32))
    even = seven + seven
    nibble = (even ^ (even.bits(I16x16) >> 4).bits(I8x32)) & 0x0F
    odd = (seven & 0x7E) | x86.shuffle_bytes(k, k.const(I8x32, _PARITY), nibble)
    scales = (words >> 27) | 1
    return _paired(even, odd), [scales | (scales << 16)]


def _iq2_xxs_header(k, block: Val) -> tuple[list[Val], list[Val]]:
    low, high = k.load(I32x8, block + 2), k.load(I32x8, block + 34)
    return _of_words(k, low.shuffle([1, 3, 9, 11, 5, 7, 13, 15], high))


def _iq3_xxs_header(k, block: Val) -> tuple[list[Val], list[Val]]:
    return _of_words(k, k.load(I32x8, block + 66).shuffle(_ORDER))


def _iq2_s_header(k, block: Val) -> tuple[list[Val], list[Val]]:
    signs = k.load(I32x8, block + 34).shuffle(_ORDER).bits(I8x32)
    nibbles = k.load(Vec("i8", 8), block + 74).zext(I32x8).shuffle(_ORDER)
    scales = [twice & 0x1E for twice in (nibbles << 1, nibbles >> 3)]
    return _paired(signs + signs, signs), [(scale | (scale << 16)) | 0x10001 for scale in scales]


# -- indices
def _bytes(word: Val, count: int) -> list[Val]:
    return [(word >> 8 * i) & 0xFF for i in range(count)]


def _iq2_xxs_indices(k, block: Val) -> Callable[[int], list[Val]]:
    return lambda group: _bytes(k.load(types.int32, block + (2 + 8 * group)).zext(Int), 4)


def _iq3_xxs_indices(k, block: Val) -> Callable[[int], list[Val]]:
    return lambda group: _bytes(k.load(Int, block + (2 + 8 * group)), 8)


def _iq2_s_indices(k, block: Val) -> Callable[[int], list[Val]]:
    high = k.load(Int, block + 66).splat(_I64x4).bits(I8x32)
    words = []
    for half in range(2):
        spread = x86.shuffle_bytes(k, high, k.const(I8x32, [n for i in range(16) for n in (4 * half + i // 4, 0x80)]))
        upper = (spread.bits(I16x16) * ([256, 64, 16, 4] * 4)) & 0x300
        words.append((k.load(I8x16, block + (2 + 16 * half)).zext(I16x16) | upper).bits(_I64x4))

    def indices(group: int) -> list[Val]:
        word = words[group // 4].lane(group % 4)
        return [(word >> 16 * i) & 0xFFFF for i in range(4)]

    return indices


# -- any of them
def _magnitudes(k, book: _Book, indices: list[list[Val]], half: int) -> Val:
    """Look up octets 2 half and 2 half + 1 of both groups of a pair."""
    grid = book.fmt.codes.grid  # type: ignore[union-attr]
    width = grid.shape[1]
    element, part, whole = ("i64", types.float64, F64x4) if width == 8 else ("i32", types.int32, I32x8)
    entries = np.ascontiguousarray(grid).view(f"<i{width}")[:, 0].tolist()
    table = k.table(f"{book.fmt.name}_entries", element, entries)
    count = 16 // width
    chosen = [index for group in indices for index in group[count * half : count * half + count]]
    return k.gather(whole, [k.load(part, table + index * width) for index in chosen]).bits(I8x32)


def _negative(k, signs: list[Val], pair: int, half: int) -> Val:
    """Return bytes whose top bits are the signs of the weights of ``_magnitudes``."""
    first = 8 * (pair & 1) + 4 * half
    lane = [first + 2 * (i // 8) + i % 2 for i in range(16)]
    spread = x86.shuffle_bytes(k, signs[pair >> 1], k.const(I8x32, lane * 2))
    return (spread.bits(I16x16) * ([64, 16, 4, 1] * 4)).bits(I8x32)


def _scale(scales: Val, pair: int) -> Val:
    """Return 2 ls + 1 of the two groups of a pair as words."""
    return scales.shuffle([pair] * 4 + [4 + pair] * 4).bits(I16x16)


def decoded(k, book: _Book, block: Val) -> tuple[list[Val], list[Val]]:
    """Return the signed weights of a block of octets in the order of pairs, and the scales of each pair."""
    signs, (scales,) = book.header(k, block)
    group_indices = book.indices(k, block)
    weights = []
    for pair in range(4):
        indices = [group_indices(group) for group in _PAIRS[pair]]
        for half in range(2):
            magnitudes = _magnitudes(k, book, indices, half)
            weights.append(x86.sign_bytes_256(k, magnitudes, _negative(k, signs, pair, half)))
    return weights, [_scale(scales, pair) for pair in range(4)]


def _lane_sums(k, book: _Book, block: Val, x: Val, limbs: int) -> list[Val]:
    """Return sum_g (2 ls_g + 1) dot_g in eight lanes, for each limb of the packed inputs."""
    signs, scales = book.header(k, block)
    group_indices = book.indices(k, block)
    sums = [k.zero(I32x8)] * limbs
    for pair in range(4):
        indices = [group_indices(group) for group in _PAIRS[pair]]
        dots = [k.zero(I16x16)] * limbs
        for half in range(2):
            magnitudes, negative = _magnitudes(k, book, indices, half), _negative(k, signs, pair, half)
            for limb in range(limbs):
                inputs = k.load(I8x32, x + 32 * (limbs * (2 * pair + half) + limb))
                dots[limb] = dots[limb] + x86.madd_bytes_256(k, magnitudes, x86.sign_bytes_256(k, inputs, negative))
            k.forget_loads()
            if half == 1 or len(scales) == 2:
                scale = _scale(scales[half % len(scales)], pair)
                sums = [total + x86.madd_256(k, part, scale) for total, part in zip(sums, dots, strict=True)]
                dots = [k.zero(I16x16)] * limbs
    return sums


def _kernels(book: _Book) -> dict[tuple[str, str], RowKernel]:
    """Make the kernels of a format for Q8_K and for float inputs."""
    factor, size = book.fmt.scale.factor, book.fmt.block_bytes  # type: ignore[union-attr]
    lines, packed, packed_float = -(-size // 64), 256 + 32, 3 * 256 + 32

    @inline(F32x8, F32x8, Int, Int)
    def add(k, total, weights, x):
        """Return total + the lane sums of one block."""
        (sums,) = _lane_sums(k, book, weights, x, 1)
        return k.fma(sums.to_float(F32x8), broadcast_half(k, weights, F32x8) * k.load(F32x8, x + 256), total)

    @inline(types.none, Int, Int, Float)
    def finish(k, target, half, scale):
        """Bring the codes of a record into the order of pairs, and store the scale."""
        groups = [[k.load(I8x16, target + 32 * group + 16 * half) for half in range(2)] for group in range(8)]
        for pair, (first, second) in enumerate(_PAIRS):
            for half in range(2):
                k.store(target + 64 * pair + 32 * half, groups[first][half].cat(groups[second][half]))
        k.store(target + 256, (scale * factor).splat(F32x8))

    @inline(F32x8, F32x8, Int, Int)
    def add_float(k, total, weights, x):
        """Return total + the lane sums of one block."""
        sums = total_of_limbs(k, _lane_sums(k, book, weights, x, 3), x + 768)
        return k.fma(sums, broadcast_half(k, weights, F32x8) * factor, total)

    return {
        (book.fmt.name, "q8k"): rows_of_256(
            LANES_8, lines, add, size, make_q8k_pack(packed, lambda sub: 32 * sub, finish), packed
        ),
        (book.fmt.name, "float"): rows_of_256(LANES_8, lines, add_float, size, _pack_float, packed_float),
    }


@inline(types.none, Int, Int)
def _pack_block(k, x, target):
    """Pack 256 inputs in the order of pairs."""
    octets = [[k.load(F32x16, x + 128 * group + 64 * half) for half in range(2)] for group in range(8)]
    runs = [octets[a][half].cat(octets[b][half]) for a, b in _PAIRS for half in range(2)]
    store_lane_limbs(k, target, target + 768, runs)


@njit(**JIT)
def _pack_float(x, n, buffer):
    for _ in range(n >> 8):
        _pack_block(x, buffer)
        buffer += 800
        x += 1024


IQ2_XXS = _Book(FORMATS["IQ2_XXS"], _iq2_xxs_header, _iq2_xxs_indices)
KERNELS: dict[tuple[str, str], RowKernel] = {
    **_kernels(IQ2_XXS),
    **_kernels(_Book(FORMATS["IQ3_XXS"], _iq3_xxs_header, _iq3_xxs_indices)),
    **_kernels(_Book(FORMATS["IQ2_S"], _iq2_s_header, _iq2_s_indices)),
}
