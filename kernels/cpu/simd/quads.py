"""Row kernels of IQ3_XXS and IQ2_S in tier A, for Q8_K and float inputs (``kernels/formats`` has the layout of blocks).

A *quad* is a group of 4 weights, an *octet* one of 8. A step decodes a block to four planes of 64 unsigned bytes: byte
q of plane p is ``bias`` + w for weight 4 q + p.
    1. A quad of the codebook is four 2-bit codes of magnitudes in a byte, or two 3-bit ones in each of two. Byte
       permutes look up 64 of them at once (``iq2_xxs.look_up``): the quads of a block of IQ3_XXS, or the octets of two
       blocks of IQ2_S, whose low and high halves are then interleaved.
    2. ``vpermb``, which ignores all but six bits of an index, turns codes into ``bias`` + magnitude.
    3. Where the sign of its weight is set, 2 ``bias`` minus that is taken.
    4. int32 lane i accumulates the products of weights 16 i .. 16 i + 15, which share a scale. It starts at ``bias``
       times the negated sum of their inputs.

Packed buffer, per 256 inputs: 4 planes of 64 codes, for float inputs of each limb (``fixed``) | 16 f32 (input scale *
factor / 2^27) | 16 i32 (offsets; for float inputs of the high limb) | for float inputs 16 i32 (of middle and low limb).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from ...formats import FORMATS, Format
from . import x86
from .fixed import limbs, scale_of_32
from .helpers import broadcast_half
from .iq2_xxs import look_up, run
from .quantize import q8k_scale, round_to_codes, sixteen_sums
from .row_kernel import LANES_16, Part, RowKernel, make_rows, records
from .vec import JIT, F32x16, F32x32, Float, I8x32, I8x64, I32x8, I32x16, I64x8, Int, Val, Vec, inline

_I64x4 = Vec("i64", 4)


class _Book(NamedTuple):
    """How the blocks of a format are decoded.

    fmt     the declaration of the format
    width   bits of the code of a magnitude
    codes   function that looks up the codes of all ``blocks``: for each block one or two I8x64, whose byte q belongs to
            quad q
    signs   function that loads the signs of a block: bit i of byte q is that of weight i of the octet with quad q
    scales  function that loads the 16 sub-scales of a block, in the top four bits of each word
    blocks  number of blocks that ``codes`` takes
    """

    fmt: Format
    width: int
    codes: Callable[[Any, list[Val]], list[list[Val]]]
    signs: Callable[[Any, Val], Val]
    scales: Callable[[Any, Val], Val]
    blocks: int

    @property
    def magnitudes(self) -> np.ndarray:
        """Return the values of codes, ascending."""
        return np.unique(self.fmt.codes.grid)  # type: ignore[union-attr]


def _coded(name: str, width: int, columns: tuple[int, ...]) -> np.ndarray:
    """Return a byte for each codebook entry: the codes of the magnitudes in ``columns``, the first in the low bits."""
    grid = FORMATS[name].codes.grid  # type: ignore[union-attr]
    codes = np.searchsorted(np.unique(grid), grid)
    return sum(codes[:, column] << width * i for i, column in enumerate(columns))  # type: ignore[return-value]


def _looked_up(k, table: np.ndarray, index: Val) -> Val:
    """Look 64 indices up in a table of 256 bytes."""
    out: list[Val] = []
    run(look_up(k, table, index, (index & 0x40).compare("!=", 0), index.compare("<", 0), out))
    return out[0]


# -- IQ3_XXS: quads
_IQ3_XXS_TABLES = [_coded("IQ3_XXS", 3, columns) for columns in ((0, 1), (2, 3))]


def _iq3_xxs_codes(k, blocks: list[Val]) -> list[list[Val]]:
    index = k.load(I8x64, blocks[0] + 2)
    return [[_looked_up(k, table, index) for table in _IQ3_XXS_TABLES]]


def _iq3_xxs_words(k, block: Val) -> Val:
    """Load the words of signs and scales, each twice."""
    return k.load(I32x8, block + 66).shuffle([i // 2 for i in range(16)])


def _iq3_xxs_signs(k, block: Val) -> Val:
    fields = x86.multishift(k, k.const(I8x64, [start for start in (0, 7, 14, 21) for _ in range(2)] * 8),
                            _iq3_xxs_words(k, block))  # fmt: skip
    return x86.bit_matrix(k, fields, [*([bit] for bit in range(7)), list(range(7))])


# -- IQ2_S: octets of two blocks, in turns of eight
_IQ2_S_TABLES = [_coded("IQ2_S", 2, columns) for columns in ((0, 1, 2, 3), (4, 5, 6, 7))]


def _iq2_s_codes(k, blocks: list[Val]) -> list[list[Val]]:
    first, second = (k.load(I32x8, block + 2) for block in blocks)
    index = first.shuffle([i // 4 * 2 + i % 2 + 8 * (i // 2 % 2) for i in range(16)], second).bits(I8x64)
    first, second = (k.load(Int, block + 66).splat(I64x8) for block in blocks)
    starts = [2 * (8 * (i // 16) + i % 8) for i in range(64)]
    above = x86.multishift(k, k.const(I8x64, starts), first.shuffle([0, 8] * 4, second))
    odd, upper = (above & 1).compare("!=", 0), (above & 2).compare("!=", 0)
    low, high = (
        _one_of_four(k, [_looked_up(k, table[at : at + 256], index) for at in range(0, 1024, 256)], odd, upper)
        for table in _IQ2_S_TABLES
    )
    return [
        [low.shuffle([16 * (i // 16) + 8 * block + i % 16 // 2 + i % 2 * 64 for i in range(64)], high)]
        for block in range(2)
    ]


def _one_of_four(k, parts: list[Val], odd: Val, upper: Val) -> Val:
    below, above = (k.select(odd, parts[i + 1], parts[i]) for i in (0, 2))
    return k.select(upper, above, below)


def _iq2_s_signs(k, block: Val) -> Val:
    signs = k.load(I8x32, block + 34)
    return x86.permute_bytes(k, signs.cat(signs), k.const(I8x64, [i // 2 for i in range(64)]))


def _iq2_s_scales(k, block: Val) -> Val:
    starts = [start for nibble in range(16) for start in (0, 0, 0, (4 * nibble - 4) % 64)]
    return x86.multishift(k, k.const(I8x64, starts), k.load(Int, block + 74).splat(I64x8)).bits(I32x16)


# -- any of them
def _planes(k, book: _Book, codes: list[Val], signs: Val) -> list[Val]:
    """Return ``bias`` + w of a block as four planes."""
    magnitudes = [*map(int, book.magnitudes)]
    bias = magnitudes[-1]
    planes = []
    for plane in range(4):
        register, place = divmod(plane, 4 // len(codes))
        index, first = codes[register], place * book.width
        if first + book.width > 6:
            index, first = (index.bits(I64x8) >> 4).bits(I8x64), first - 4
        table = [bias + magnitudes[min(i >> first & (1 << book.width) - 1, len(magnitudes) - 1)] for i in range(64)]
        values = x86.permute_bytes(k, k.const(I8x64, table), index)
        negative = (signs & [1 << plane, 16 << plane] * 32).compare("!=", 0)
        planes.append(k.select(negative, k.const(I8x64, 2 * bias) - values, values))
    return planes


def _dots(k, planes: list[Val], x: Val, passes: int) -> Val:
    """Return the products of 16 weights a lane as floats."""
    at = x + (256 * passes + 64)
    sums = [k.load(I32x16, at), *([k.zero(I32x16), k.load(I32x16, at + 64)] if passes == 3 else [])]
    for i, plane in enumerate(planes):
        for limb in range(passes):
            sums[limb] = x86.dpbusd_512(k, sums[limb], plane, k.load(I8x64, x + (256 * limb + 64 * i)))
    if passes == 1:
        return sums[0].to_float(F32x16)
    upper = (sums[0] << 8) + sums[1]
    return k.fma(upper.to_float(F32x16), k.const(F32x16, 256), sums[2].to_float(F32x16))


def _pack(book: _Book, passes: int, record: int) -> Any:
    bias, factor = int(book.magnitudes[-1]), book.fmt.scale.factor * 2.0**-27  # type: ignore[union-attr]

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack_32(k, target, sub, x, scale, inverse):
        """Store codes, scales and offsets of the 32 inputs of two lanes."""
        values, sums = k.load(F32x32, x), []
        parts = [round_to_codes(k, values, inverse)] if passes == 1 else limbs(k, values, inverse.splat(F32x32))
        for limb, codes in enumerate(parts):
            turned = codes.shuffle([4 * quad + plane for plane in range(4) for quad in range(8)]).bits(_I64x4)
            for plane in range(4):
                k.store(target + sub * 8 + (256 * limb + 64 * plane), turned.lane(plane))
            sums.append([part.sext(types.int32) for part in sixteen_sums(k, codes)])
        for half in range(2):
            at = target + sub * 8 + (256 * passes + 4 * half)
            k.store(at, scale * factor)
            k.store(at + 64, sums[0][half] * -bias)
            if passes == 3:
                k.store(at + 128, (sums[1][half] * 256 + sums[2][half]) * -bias)

    scale_of, groups = (q8k_scale, 8) if passes == 1 else (scale_of_32, 1)

    @njit(**JIT)
    def pack(x, n, buffer):
        for first in range(0, n >> 5, groups):
            scale, inverse = scale_of(x)
            for group in range(first, first + groups):
                pack_32(buffer + (group >> 3) * record, group & 7, x, scale, inverse)
                x += 128

    return pack


def _kernel(book: _Book, passes: int) -> RowKernel:
    """Make the kernel for Q8_K inputs (one pass) or float ones (three)."""
    size, record = book.fmt.block_bytes, 256 * passes + (192 if passes == 3 else 128)

    def add_blocks(k, total, weights, x, count: int):
        blocks = [weights + size * min(i, count - 1) for i in range(book.blocks)]
        for block, codes in list(zip(blocks, book.codes(k, blocks), strict=True))[:count]:
            dots = _dots(k, _planes(k, book, codes, book.signs(k, block)), x, passes)
            odd = (book.scales(k, block) & 0xF0000000) | 0x08000000  # (2 s + 1) * 2^27
            scales = odd.to_float_unsigned(F32x16) * broadcast_half(k, block, F32x16)
            total = k.fma(dots, scales * k.load(F32x16, x + 256 * passes), total)
            x = x + record
        return total

    def part(count: int) -> Part:
        add = inline(F32x16, F32x16, Int, Int)(lambda k, total, w, x: add_blocks(k, total, w, x, count))
        return Part(256 * count, add, size * count, record * count)

    parts = [part(count) for count in range(book.blocks, 0, -1)]
    return RowKernel(_pack(book, passes, record), make_rows(LANES_16, 2 * book.blocks, *parts), records(256, record))


_IQ3_XXS = _Book(FORMATS["IQ3_XXS"], 3, _iq3_xxs_codes, _iq3_xxs_signs, _iq3_xxs_words, 1)
_IQ2_S = _Book(FORMATS["IQ2_S"], 2, _iq2_s_codes, _iq2_s_signs, _iq2_s_scales, 2)
KERNELS = {
    (book.fmt.name, act): _kernel(book, passes)
    for book in (_IQ3_XXS, _IQ2_S)
    for act, passes in (("q8k", 1), ("float", 3))
}
