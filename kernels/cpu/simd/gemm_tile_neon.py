"""The register tile of the int8 GEMM of tier N: 12 weight rows x 1 to 4 tokens.

A register of 16 bytes holds four *pieces* of 4 bytes, of four rows or of four tokens, that lie at the same inputs.
``sdot`` multiplies those of four rows by that of one token, a lane of its register. So a lane of an accumulator is one
row and one token, and nothing is summed across lanes at the end. Of 32 registers 24 are accumulators: twelve integer
sums, and twelve float sums or, where sub-scales are multiplied in integers, twelve products of 32 inputs.

Panels are contiguous in the order in which the tile reads them. A record covers a *group* of inputs that share their
float scales. It has a *unit* for each 32 of them, then floats:

    inputs    units: [8][4 tokens][4] int8 | the tokens' scales, sums for the minima
    weights   units: [8][12 rows][4] int8, perhaps the rows' sub-scales | the rows' scales, negated minima

A float or a sub-scale fills as many bytes as a piece.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from ..sizes import ROWS_AT_ONCE as ROWS
from . import neon
from .gemm_tile import TOKENS
from .vec import F32x4, I8x16, I32x4, I32x8, Int, Val, inline

UNIT, PIECE = 32, 4
"""Inputs of a unit; bytes of a row or a token in a register."""
QUADS = ROWS // 4
"""Registers of weights of a piece of all rows."""


class Tile(NamedTuple):
    """What a tile multiplies.

    group       inputs that share float scales: 32 or a multiple
    sub_scales  whether each row has an integer scale for every unit
    minima      numbers of a row, and sums of a token, for a group
    """

    group: int
    sub_scales: bool
    minima: int

    @property
    def weight_unit(self) -> int:
        """Bytes of a unit of weights."""
        return ROWS * (UNIT + self.sub_scales * PIECE)

    @property
    def weight_record(self) -> int:
        """Bytes of a group of weights."""
        return self.group // UNIT * self.weight_unit + (1 + self.minima) * ROWS * PIECE

    @property
    def input_record(self) -> int:
        """Bytes of a group of inputs."""
        return TOKENS * (self.group + (1 + self.minima) * PIECE)


def put_codes(k, target: Val, place: Val, places: int, codes: Val) -> None:
    """Store 32 codes (I8x32) of row or token ``place``; ``target`` is where those of the first place begin."""
    parts = codes.bits(I32x8)
    for i in range(UNIT // PIECE):
        k.store(target + place * PIECE + places * PIECE * i, parts.lane(i))


def _columns(k, kind: types.Type, source: Val, tokens: int) -> list[Val]:
    """Load what each accumulator of a register of rows is multiplied by: bytes (I8x16) or floats (F32x4)."""
    words = k.load(I32x4 if kind is I8x16 else F32x4, source)
    return [words.shuffle([token] * 4).bits(kind) for token in range(tokens)]


def sums_kind(tokens: int, kind: types.Type = F32x4) -> types.UniTuple:
    """Return the type of the accumulators of so many tokens: those of the first register of rows, then the others."""
    return types.UniTuple(kind, QUADS * tokens)


def make_dots(tile: Tile, tokens: int):
    """Make an inlined function that adds the products of a unit, times sub-scales, to integer accumulators."""
    kind = sums_kind(tokens, I32x4)

    @inline(kind, kind, Int, Int)
    def add_dots(k, sums, weights, inputs):
        sums = k.members(sums)
        dots = [k.zero(I32x4)] * len(sums) if tile.sub_scales else sums
        for i in range(UNIT // PIECE):
            columns = _columns(k, I8x16, inputs + TOKENS * PIECE * i, tokens)
            for r in range(QUADS):
                rows = k.load(I8x16, weights + (ROWS * PIECE * i + 16 * r))
                for c, column in enumerate(columns, r * tokens):
                    dots[c] = neon.dots_16(k, dots[c], rows, column)
        if not tile.sub_scales:
            return tuple(dots)
        for r in range(QUADS):
            scales = k.load(I32x4, weights + (ROWS * UNIT + 16 * r))
            for c in range(r * tokens, (r + 1) * tokens):
                sums[c] = sums[c] + dots[c] * scales
        return tuple(sums)

    return add_dots


def make_finish(tile: Tile, tokens: int):
    """Make an inlined function that adds integer sums times both scales, and the minima, to float accumulators."""
    kind = sums_kind(tokens)

    @inline(kind, kind, sums_kind(tokens, I32x4), Int, Int)
    def add_scaled(k, sums, dots, weights, inputs):
        sums, dots = k.members(sums), k.members(dots)
        for m in range(1 + tile.minima):
            columns = _columns(k, F32x4, inputs + TOKENS * PIECE * m, tokens)
            for r in range(QUADS):
                rows = k.load(F32x4, weights + (ROWS * PIECE * m + 16 * r))
                for c, column in enumerate(columns, r * tokens):
                    factors = (rows, column) if m else (dots[c].to_float(F32x4), rows * column)
                    sums[c] = k.fma(*factors, sums[c])
        return tuple(sums)

    return add_scaled


def make_zero(kind: types.UniTuple):
    """Make an inlined function that returns accumulators of 0."""
    return inline(kind)(lambda k: tuple(k.zero(kind.dtype) for _ in range(kind.count)))


def make_load(kind: types.UniTuple):
    """Make an inlined function that loads accumulators."""
    return inline(kind, Int)(lambda k, at: tuple(k.load(kind.dtype, at + 16 * i) for i in range(kind.count)))


def make_store(kind: types.UniTuple):
    """Make an inlined function that stores accumulators."""

    @inline(types.none, Int, kind)
    def store_sums(k, address, sums):
        for i, total in enumerate(k.members(sums)):
            k.store(address + 16 * i, total)

    return store_sums


def make_out(tokens: int):
    """Make an inlined function that stores the twelve rows of token t to ``out + t * stride``."""
    kind = sums_kind(tokens)

    @inline(types.none, kind, Int, Int)
    def store_rows(k, sums, out, stride):
        sums = k.members(sums)
        for t in range(tokens):
            for quad in range(QUADS):
                k.store(out + stride * t + 16 * quad, sums[quad * tokens + t])

    return store_rows
