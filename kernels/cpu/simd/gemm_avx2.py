"""Tiles, packed inputs and weight decoders of the int8 GEMM in tier B (AVX2): 2 weight rows by 1 to 4 tokens over 256
inputs, a block of weights. A row group (``gemm``) is three such pairs of rows.

A result has the bits of the row kernel: products add up in the same eight int32 lanes, and blocks in the same order.
``vpmaddubsw`` multiplies 32 weights and inputs to words, which hold the sums of two; words with the same scales are
added, and ``vpmaddwd`` multiplies them by the scales. Sixteen registers hold eight sums, the weights of two rows and
the inputs of one token; the sums of floats, which change once a block, are in memory.

    IQ2_XXS  weights are stored as 43 + w, so that inputs need no signs. Words start at -43 times the sum of their
             inputs: they may overflow on the way, not in the end. Sums of two products, which saturate, are below 2^15.
    Q2_K     weights are stored times their scales, up to 45, and four products fit in a word: the "scale" is 1.
    Q4_K     every register has scales of its own.

Record of a row: 256 bytes | words of scales | d, dmin (float32) | minima. Record of a token: what the row kernel packs,
then for IQ2_XXS the start values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import njit, types

from ...formats import FORMATS
from . import codebook_avx2, k_avx2, x86
from .gemm_tile import COUNTS, TOKENS, totals
from .helpers import broadcast_half
from .vec import JIT, Emit, F32x8, Float, I8x32, I16x8, I16x16, I32x8, Int, Val, inline

CHUNK, PAIR, PAIRS = 256, 2, 3
ROWS = PAIR * PAIRS
_REGISTERS = CHUNK // 32
TOTALS = {tokens: totals(PAIR * tokens, F32x8) for tokens in COUNTS}
"""Sums of a tile, by its number of tokens; those of a token are adjacent."""
_STARTS = CHUNK + 32
_BIAS = int(FORMATS["IQ2_XXS"].codes.grid.max())  # type: ignore[union-attr]


class Layout(NamedTuple):
    """How the tile multiplies a format.

    step    registers of weights that have the same scales
    scales  number of vectors of scales; 0: all are 1
    starts  whether words have start values
    minima  function (row, token) that returns the lane sums of the minima, from where a row's record has them, and a
            token's the sums of inputs; None if there are none
    """

    step: int
    scales: int
    starts: bool = False
    minima: Callable[[Emit, Val, Val], Val] | None = None

    @property
    def d(self) -> int:
        """Return the offset of d and dmin."""
        return CHUNK + 32 * self.scales

    @property
    def row_bytes(self) -> int:
        return self.d + (64 if self.minima else 32)

    @property
    def token_bytes(self) -> int:
        return _STARTS + (128 if self.starts else 32)


LAYOUTS = {
    "IQ2_XXS": Layout(2, 4, starts=True),
    "Q2_K": Layout(2, 0, minima=lambda k, row, token: x86.madd_256(k, k.load(I16x16, row), k.load(I16x16, token))),
    "Q4_K": Layout(1, 8, minima=lambda k, row, token: k.load(I32x8, row) * k.load(I16x8, token).sext(I32x8)),
}


def make_tile(layout: Layout, tokens: int) -> Any:
    """Make an inlined function that adds a chunk of two rows and of the first ``tokens`` tokens to their sums."""
    kind, row_bytes, token_bytes = TOTALS[tokens].kind, layout.row_bytes, layout.token_bytes

    @inline(kind, kind, Int, Int)
    def tile(k, sums, weights, inputs):
        dots = [[k.zero(I32x8)] * PAIR for _ in range(tokens)]
        for number in range(_REGISTERS // layout.step):
            registers = [32 * (layout.step * number + i) for i in range(layout.step)]
            rows = [[k.load(I8x32, weights + (row_bytes * r + at)) for at in registers] for r in range(PAIR)]
            for t in range(tokens):
                token = inputs + token_bytes * t
                codes = [k.load(I8x32, token + at) for at in registers]
                for r in range(PAIR):
                    words = [x86.madd_bytes_256(k, *both) for both in zip(rows[r], codes, strict=True)]
                    if layout.starts:
                        words.append(k.load(I16x16, token + (_STARTS + 32 * number)))
                    at = weights + (row_bytes * r + CHUNK + 32 * number)
                    scale = k.load(I16x16, at) if layout.scales else k.const(I16x16, 1)
                    dots[t][r] = x86.hold_256(k, dots[t][r] + x86.madd_256(k, sum(words[1:], words[0]), scale))
        sums = k.members(sums)
        for t in range(tokens):
            token = inputs + (token_bytes * t + CHUNK)
            scale = k.load(F32x8, token)
            for r in range(PAIR):
                at, n = weights + (row_bytes * r + layout.d), PAIR * t + r
                sums[n] = k.fma(dots[t][r].to_float(F32x8), k.load(Float, at).splat(F32x8) * scale, sums[n])
                if layout.minima:
                    minima = layout.minima(k, at + 32, token + 32).to_float(F32x8)
                    sums[n] = k.fma(minima, k.load(Float, at + 4).splat(F32x8) * scale, sums[n])
        return tuple(sums)

    return tile


def make_multiply(make_tile: Callable[[int], Any], row_bytes: int, token_bytes: int, chunk: int) -> tuple[Any, ...]:
    """Make the four ``multiply`` from tiles of two rows and ``chunk`` inputs."""
    size, shift = TOKENS * token_bytes, chunk.bit_length() - 1

    def for_count(tokens: int) -> Any:
        tile = make_tile(tokens)
        kind, zero, load, store = TOTALS[tokens]

        @inline(types.none, kind, Int, Int)
        def reduce(k, sums, out, stride):
            for n, total in enumerate(k.members(sums)):
                k.store(out + stride * (n // PAIR) + 4 * (n % PAIR), k.hsum(total))

        @njit(**JIT)
        def multiply(weights, inputs, count, sums, fresh, out, stride):
            for pair in range(PAIRS):
                total = zero() if fresh else load(sums)
                row, x = weights + PAIR * row_bytes * pair, inputs
                for _ in range((count + chunk - 1) >> shift):
                    total = tile(total, row, x)
                    row += ROWS * row_bytes
                    x += size
                if out:
                    reduce(total, out + 4 * PAIR * pair, stride)
                else:
                    store(sums, total)
                sums += 32 * PAIR * TOKENS

        return multiply

    return tuple(for_count(tokens) for tokens in COUNTS)


# -- inputs
@inline(types.none, Int)
def _store_starts(k, token):
    """Store -43 times the sum of the four inputs of each word, two of each of two registers."""
    bias = k.const(I8x32, _BIAS)
    for pair in range(_REGISTERS // 2):
        parts = [x86.madd_bytes_256(k, bias, k.load(I8x32, token + 32 * (2 * pair + i))) for i in range(2)]
        k.store(token + (_STARTS + 32 * pair), k.zero(I16x16) - parts[0] - parts[1])


def make_pack(layout: Layout, pack: Any) -> Any:
    """Make the ``pack`` of a format from that of its row kernel."""
    size, starts = layout.token_bytes, layout.starts

    @njit(**JIT)
    def pack_token(x, n, panel, slot):
        target = panel + slot // TOKENS * (n // CHUNK * TOKENS * size) + slot % TOKENS * size
        for _ in range(n // CHUNK):
            pack(x, CHUNK, target)
            if starts:
                _store_starts(target)
            x += 4 * CHUNK
            target += TOKENS * size

    return pack_token


# -- weights
def _store(k, layout: Layout, target: Val, vectors: list[Val], halves: Val, minima: Val | None = None) -> None:
    """Store codes and scales, d (and dmin after it) from the f16 at ``halves``, and minima."""
    for i, vector in enumerate(vectors):
        k.store(target + 32 * i, vector)
    for i in range(1 if minima is None else 2):
        k.store(target + (layout.d + 4 * i), broadcast_half(k, halves + 2 * i, F32x8).lane(0))
    if minima is not None:
        k.store(target + (layout.d + 32), minima)


def _decode_iq2_xxs(k, layout: Layout, block: Val, target: Val) -> None:
    weights, scales = codebook_avx2.decoded(k, codebook_avx2.IQ2_XXS, block)
    _store(k, layout, target, [*(weight + _BIAS for weight in weights), *scales], block)


def _decode_q2_k(k, layout: Layout, block: Val, target: Val) -> None:
    fmt = k_avx2.Q2_K_BLOCK
    header = fmt.header(k, block)
    codes = [
        (code.bits(I16x16) * scale).bits(I8x32)  # a word is two codes, of which the lower one stays below 256
        for code, scale in zip(fmt.codes(k, block), fmt.scales(k, header), strict=True)
    ]
    _store(k, layout, target, codes, block + fmt.d, header.zext(I16x16) >> 4)


def _decode_q4_k(k, layout: Layout, block: Val, target: Val) -> None:
    fmt = k_avx2.Q4_K_BLOCK
    header = fmt.header(k, block)
    vectors = [*fmt.codes(k, block), *fmt.scales(k, header)]
    _store(k, layout, target, vectors, block + fmt.d, k_avx2.minima_of_8(k, header))


_DECODERS = {"IQ2_XXS": _decode_iq2_xxs, "Q2_K": _decode_q2_k, "Q4_K": _decode_q4_k}


def make_decode(name: str) -> Any:
    """Make an inlined function (block, _, target, place) that decodes 256 weights of a row to its record, number
    ``place`` of a row group."""
    layout, emit = LAYOUTS[name], _DECODERS[name]

    @inline(types.none, Int, Int, Int, Int)
    def decode(k, block, _, target, place):
        emit(k, layout, block, target + place * layout.row_bytes)

    return decode
