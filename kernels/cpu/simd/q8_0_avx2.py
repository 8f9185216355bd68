"""Q8_0 with inputs rounded to A8 in tier B (AVX2): the row kernel, and the tile, packed inputs and weight decoder of
the GEMM, which give the same bits. Blocks are an f16 scale and 32 int8 (docs/explanation/model.md 2.3, 10.2).

A step takes four blocks. ``vpsignb`` brings the weights' signs to the inputs, ``vpmaddubsw`` and ``vpmaddwd`` add four
products. Int32 lane b adds up the first 16 products of block b, lane b + 4 the other 16, so that one conversion and one
multiply-add serve 128 products; with eight lanes for each block, they would cost as much as the products.

The row kernel finds the four sums of four lanes by transposing. In the GEMM weights and inputs are transposed when they
are packed: word s of block b becomes word b of register s, within each half. A tile has 2 rows and 1 to 4 tokens.

A record has 128 inputs or, in the GEMM, weights: 4 x 32 codes | 8 f32 (scales of the blocks, twice). A last single
block takes the place of the third, where the row kernel has it after two others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import njit, types

from ...formats import FORMATS
from . import x86
from .gemm_avx2 import PAIR, TOTALS
from .gemm_tile import TOKENS
from .helpers import dots, magnitude, prefetch
from .quantize import a8_scale, store_codes
from .row_kernel import EVERY_COUNT, LANES_8, Part, RowKernel, make_rows, records
from .vec import JIT, Emit, F32x8, Float, I8x32, I16x8, I16x16, I32x4, I32x8, Int, Val, inline

BLOCK = FORMATS["Q8_0"].block_bytes
CHUNK, RECORD = 128, 128 + 32
_TAILS = (0, 1), (2,)
"""Places of the blocks of 64 and of 32 last inputs; 96 have both."""


def _scales(k: Emit, blocks: Sequence[Val | None]) -> Val:
    """Return the scales of four blocks, zero for those that are None, twice."""
    zero = k.zero(types.int32)
    words = k.gather(I32x4, [zero if block is None else k.load(types.int32, block) for block in blocks])
    return k.half_to_float(words.bits(I16x8)).shuffle([0, 2, 4, 6] * 2)


# -- row kernel
def _both(a: Val, b: Val) -> Val:
    """Return the sums of two adjacent lanes: in each half two of ``a``, then two of ``b``."""
    return a.shuffle([0, 2, 8, 10, 4, 6, 12, 14], b) + a.shuffle([1, 3, 9, 11, 5, 7, 13, 15], b)


def _part(places: Sequence[int], packed: int) -> Part:
    """Make the step for as many blocks, which have these places in the inputs' record."""

    @inline(F32x8, F32x8, Int, Int)
    def add(k, total, weights, x):
        blocks: list[Val | None] = [None] * 4
        sums = [k.zero(I32x8)] * 4
        for i, place in enumerate(places):
            blocks[place] = block = weights + BLOCK * i
            sums[place] = dots(k, k.load(I8x32, block + 2), k.load(I8x32, x + 32 * place), None, signed=True)
        four = _both(_both(sums[0], sums[1]), _both(sums[2], sums[3]))
        return k.fma(four.to_float(F32x8), _scales(k, blocks) * k.load(F32x8, x + CHUNK), total)

    return Part(32 * len(places), add, BLOCK * len(places), packed)


@inline(types.none, Int)
def _clear(k, target):
    for at in range(0, RECORD, 32):
        k.store(target + at, k.zero(I32x8))


@inline(types.none, Int, Float)
def _store_scale(k, target, scale):
    for half in range(2):
        k.store(target + 16 * half, scale)


@njit(**JIT)
def _pack(x, n, buffer):
    if n & 96:
        _clear(buffer + (n >> 7) * RECORD)
    for block in range(n >> 5):
        target, place = buffer + (block >> 2) * RECORD, block & 3
        if (n & 96) == 32 and block == (n >> 5) - 1:
            place = 2
        scale, inverse = a8_scale(x)
        store_codes(target + 32 * place, x, inverse)
        _store_scale(target + CHUNK + 4 * place, scale)
        x += 128


_ROWS = make_rows(LANES_8, 3, _part(range(4), RECORD), *(_part(places, 0) for places in _TAILS), counts=EVERY_COUNT)
A8 = RowKernel(_pack, _ROWS, records(CHUNK, RECORD))


# -- GEMM
def _transposed(registers: Sequence[Val]) -> list[Val]:
    """Transpose the 4 x 4 words of each half of four registers."""
    a, b, c, d = (register.bits(I32x8) for register in registers)
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    pairs = [first.shuffle(half, second) for half in (low, high) for first, second in ((a, b), (c, d))]
    first, second = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    return [pairs[i].shuffle(lanes, pairs[i + 1]).bits(I8x32) for i in (0, 2) for lanes in (first, second)]


@inline(types.none, Int)
def _transpose_token(k, target):
    for i, register in enumerate(_transposed([k.load(I8x32, target + 32 * i) for i in range(4)])):
        k.store(target + 32 * i, register)


@njit(**JIT)
def pack(x, n, panel, slot):
    """Pack a token (``gemm.Gemm``)."""
    target = panel + slot // TOKENS * ((n + CHUNK - 1) // CHUNK * TOKENS * RECORD) + slot % TOKENS * RECORD
    for start in range(0, n, CHUNK):
        _pack(x + 4 * start, min(CHUNK, n - start), target)
        _transpose_token(target)
        target += TOKENS * RECORD


def _decode(*places: int) -> Any:
    """Make an inlined function (block, target) that decodes adjacent blocks to their places in a record."""

    @inline(types.none, Int, Int)
    def decode(k, block, target):
        blocks: list[Val | None] = [None] * 4
        for i, place in enumerate(places):
            blocks[place] = block + BLOCK * i
        codes = _transposed([k.load(I8x32, b + 2) if b is not None else k.zero(I8x32) for b in blocks])
        for i, code in enumerate(codes):
            k.store(target + 32 * i, code)
        k.store(target + CHUNK, _scales(k, blocks))

    return decode


_decode_4, _decode_3, _decode_2, _decode_1 = _decode(0, 1, 2, 3), _decode(0, 1, 2), _decode(0, 1), _decode(2)


def make_decode_row(record: int) -> Any:
    """Make ``decode_row`` (``gemm.Gemm``)."""

    @njit(**JIT)
    def decode_row(weights, row, row_bytes, n, target, place, spare):
        block = weights + row * row_bytes
        target += place * RECORD
        for _ in range(n >> 7):
            prefetch(block + 2048)
            _decode_4(block, target)
            block += 4 * BLOCK
            target += record
        last = n & 96
        if last == 96:
            _decode_3(block, target)
        elif last == 64:
            _decode_2(block, target)
        elif last == 32:
            _decode_1(block, target)

    return decode_row


def make_tile(tokens: int) -> Any:
    """Make an inlined function that adds a chunk of two rows and of the first ``tokens`` tokens to their sums."""
    kind = TOTALS[tokens].kind

    @inline(kind, kind, Int, Int)
    def tile(k, sums, weights, inputs):
        sums, totals = k.members(sums), [k.zero(I32x8)] * (PAIR * tokens)
        for at in range(0, CHUNK, 32):
            codes = [k.load(I8x32, weights + (RECORD * r + at)) for r in range(PAIR)]
            rows = [(code, magnitude(k, code)) for code in codes]
            for t in range(tokens):
                token = k.load(I8x32, inputs + (RECORD * t + at))
                for n, (code, size) in enumerate(rows, PAIR * t):
                    words = x86.madd_bytes_256(k, size, x86.sign_bytes_256(k, token, code))
                    totals[n] = x86.hold_256(k, totals[n] + x86.madd_256(k, words, k.const(I16x16, 1)))
        for n, total in enumerate(totals):
            places = weights + RECORD * (n % PAIR), inputs + RECORD * (n // PAIR)
            row, token = (k.load(F32x8, place + CHUNK) for place in places)
            sums[n] = k.fma(total.to_float(F32x8), row * token, sums[n])
        return tuple(sums)

    return tile
