"""The innermost step of the int8 GEMM (tier A), a *tile*: it multiplies 3 weight rows by 1 to 4 tokens over 512 inputs.

Weights and inputs are stored in *panels*, contiguous in the order in which the tile reads them. A record covers a chunk
of 512 inputs:

    inputs    8 slices of [4 tokens][64 bytes] int8 | [4][16] f32 lane scales | [4][16] i32 lane offsets
    weights   8 slices of [3 rows][64 bytes] uint8 | [3][16] f32 lane scales

32-bit lane L of every slice belongs to scale group L (32 inputs) of the chunk, so a chunk costs 96 ``vpdpbusd`` and
then one conversion, one product of the two scales and one multiply-add per row and token. The offsets cancel what the
decoders add to make weights unsigned. Formats with mins append one or two vectors per row (-dmin m_j) and per token
(sums of the inputs), multiplied in float.

With rounded inputs, formats with blocks of 32 store a last chunk of up to 128 inputs as one or two *short* records of
64: one slice, whose lanes hold four adjacent inputs, then scales, offsets and sums as above.

Three rows, not four: 12 integer and 12 float accumulators stay in registers over all chunks, with 4 left for operands.
With 16 and 16 the float accumulators would be loaded and stored in every chunk, and loads that wait for stores 4096
bytes away halve the rate on Intel's cores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from ..sizes import TILE_ROWS as ROWS
from ..sizes import TILE_TOKENS as TOKENS
from . import x86
from .vec import F32x16, Float, I8x64, I32x16, Int, Val, Vec, inline

COUNTS = tuple(range(1, TOKENS + 1))
"""Numbers of tokens that a tile may have, because an expert's last group of tokens is seldom full."""

SLICES = 8
CHUNK = 512
INPUT_CODES = SLICES * TOKENS * 64
INPUT_RECORD = INPUT_CODES + 2 * TOKENS * 64
WEIGHT_CODES = SLICES * ROWS * 64
MIN_BYTES = TOKENS * 64


SHORT = 64
"""Inputs of a short record."""
SHORT_MOST = 2 * SHORT
SHORT_INPUT, SHORT_WEIGHT = 4 * TOKENS * 64, 3 * ROWS * 64
"""Bytes of a short record; it may have no sums."""


class Totals(NamedTuple):
    """The accumulators of a tile: their Numba type, and functions that zero, load and store them."""

    kind: types.UniTuple
    zero: Any
    load: Any
    store: Any


def totals(count: int, vector: Vec = F32x16) -> Totals:
    """Make ``Totals`` of ``count`` vectors of sums."""
    kind, size = types.UniTuple(vector, count), 4 * vector.lanes

    zero_sums = inline(kind)(lambda k: tuple(k.zero(vector) for _ in range(count)))

    load_sums = inline(kind, Int)(lambda k, address: tuple(k.load(vector, address + size * i) for i in range(count)))

    @inline(types.none, Int, kind)
    def store_sums(k, address, sums):
        for i, total in enumerate(k.members(sums)):
            k.store(address + size * i, total)

    return Totals(kind, zero_sums, load_sums, store_sums)


TOTALS = {tokens: totals(ROWS * tokens) for tokens in COUNTS}
"""Accumulators of a tile, by its number of tokens; those of a token are adjacent."""


def weight_record(mins: int) -> int:
    """Return the bytes of a chunk of three decoded weight rows with ``mins`` vectors of minima per row."""
    return WEIGHT_CODES + ROWS * 64 * (1 + mins)


def _dots(k, dots: list[list[Val]], weights: Val, inputs: Val) -> list[list[Val]]:
    """Add the products of one record to ``dots[token][row]``."""
    for s in range(SLICES):
        rows = [k.load(I8x64, weights + 64 * (ROWS * s + r)) for r in range(ROWS)]
        for t in range(len(dots)):
            codes = k.load(I8x64, inputs + 64 * (TOKENS * s + t))
            dots[t] = [x86.dpbusd_512(k, dot, row, codes) for dot, row in zip(dots[t], rows, strict=True)]
    return dots


def _tile(mins: int, passes: int, tokens: int):
    """Make an inlined function that adds one chunk of the first ``tokens`` tokens of a group to their sums.

    With three passes the inputs are three limbs, the high one first. The high and the middle one share a conversion: 32
    products of 9 + 8 bits and a shift by 8 fit into 32 bits, all three limbs would not.
    """

    kind = TOTALS[tokens].kind

    @inline(kind, kind, Int, Int)
    def tile(k, sums, weights, inputs):
        sums = k.members(sums)
        dots: list[list[Val]] = []
        for number in range(passes):
            record = inputs + INPUT_RECORD * number
            offsets = [k.load(I32x16, record + (INPUT_CODES + 64 * (TOKENS + t))) for t in range(tokens)]
            if passes == 3 and number == 1:
                dots = [[(dot << 8) + offset for dot in line] for line, offset in zip(dots, offsets, strict=True)]
            else:
                dots = [[offset] * ROWS for offset in offsets]
            dots = _dots(k, dots, weights, record)
            if number + 1 < passes:
                k.forget_loads()
            if passes == 3 and number == 0:
                continue
            row_scales = [k.load(F32x16, weights + (WEIGHT_CODES + 64 * r)) for r in range(ROWS)]
            for t in range(tokens):
                token_scale = k.load(F32x16, record + (INPUT_CODES + 64 * t))
                for r in range(ROWS):
                    scaled = dots[t][r].to_float(F32x16)
                    sums[ROWS * t + r] = k.fma(scaled, row_scales[r] * token_scale, sums[ROWS * t + r])
        for m in range(mins):
            row_mins = [k.load(F32x16, weights + (WEIGHT_CODES + 64 * ROWS * (1 + m) + 64 * r)) for r in range(ROWS)]
            for t in range(tokens):
                input_sums = k.load(F32x16, inputs + (INPUT_RECORD * passes + MIN_BYTES * m + 64 * t))
                for r in range(ROWS):
                    sums[ROWS * t + r] = k.fma(row_mins[r], input_sums, sums[ROWS * t + r])
        return tuple(sums)

    return tile


def _short_tile(mins: int, tokens: int):
    """Make an inlined function that does the same for one short record."""
    kind = TOTALS[tokens].kind

    @inline(kind, kind, Int, Int)
    def tile(k, sums, weights, inputs):
        sums = k.members(sums)
        rows = [[k.load(F32x16, weights + 64 * (ROWS * i + r)) for i in range(2 + mins)] for r in range(ROWS)]
        for t in range(tokens):
            codes, start = k.load(I8x64, inputs + 64 * t), k.load(I32x16, inputs + 64 * (2 * TOKENS + t))
            scale = k.load(F32x16, inputs + 64 * (TOKENS + t))
            for r, (weight, row_scale, *minimum) in enumerate(rows):
                dots = x86.dpbusd_512(k, start, weight, codes).to_float(F32x16)
                total = k.fma(dots, row_scale * scale, sums[ROWS * t + r])
                if minimum:
                    total = k.fma(minimum[0], k.load(F32x16, inputs + 64 * (3 * TOKENS + t)), total)
                sums[ROWS * t + r] = total
        return tuple(sums)

    return tile


SHORT_TILES = {mins: {tokens: _short_tile(mins, tokens) for tokens in COUNTS} for mins in range(2)}
TILES = {
    (mins, passes): {tokens: _tile(mins, passes, tokens) for tokens in COUNTS} for mins in range(3) for passes in (1, 3)
}


def _interleave_add(a: Val, b: Val, width: int) -> Val:
    """Halve runs of 2 * width lanes: sums of a's runs and of b's runs, alternating."""
    low: list[int] = []
    high: list[int] = []
    lanes = a.ir.type.count
    for base in range(0, lanes, 2 * width):
        for vector in (0, lanes):
            low += range(vector + base, vector + base + width)
            high += range(vector + base + width, vector + base + 2 * width)
    return a.shuffle(low, b) + a.shuffle(high, b)


def reduce_lanes(k, sums: list[Val], out: Val, stride: Val) -> None:
    """Sum the lanes of each vector, three a token; the three rows of token t go to ``out + t * stride``."""
    lanes, tokens = sums[0].ir.type.count, len(sums) // ROWS
    blank = k.zero(Vec("f32", lanes))
    for first in range(0, tokens, lanes // 4):  # a quarter of the lanes is a token's
        some = range(first, min(tokens, first + lanes // 4))
        vectors = [v for t in some for v in (*sums[ROWS * t : ROWS * (t + 1)], blank)]
        vectors += [blank] * (lanes - len(vectors))
        width = lanes // 2
        while width:
            half = len(vectors) // 2
            vectors = [_interleave_add(vectors[i], vectors[i + half], width) for i in range(half)]
            width //= 2
        for i, t in enumerate(some):
            k.store(out + stride * t, vectors[0].shuffle(range(4 * i, 4 * i + ROWS)))


def _reduce(tokens: int):
    @inline(types.none, TOTALS[tokens].kind, Int, Int)
    def reduce_sums(k, sums, out, stride):
        reduce_lanes(k, k.members(sums), out, stride)

    return reduce_sums


REDUCE = {tokens: _reduce(tokens) for tokens in COUNTS}
"""``reduce_lanes`` of a tile's totals, by its tokens."""


@inline(types.none, Int, Int)
def copy_float(k, target, source):
    """Copy one float."""
    k.store(target, k.load(Float, source))
