"""The register tile of the int8 GEMM of tiers N and I: 12 weight rows x 1 to 4 tokens.

A register of 16 bytes holds *pieces* of several rows, or of several tokens, that lie at the same inputs:

    tier N    4 pieces of 4 bytes. ``sdot`` multiplies those of four rows by that of one token, a lane of its register
    tier I    2 pieces of 8 bytes. ``smmla`` multiplies those of two rows by those of two tokens

So a lane of an accumulator is one row and one token, and nothing is summed across lanes at the end. Of 32 registers 24
are accumulators: twelve integer sums, and twelve float sums or, where sub-scales are multiplied in integers, twelve
products of 32 inputs.

Panels are contiguous in the order in which the tile reads them. A record covers a *group* of inputs that share their
float scales. It has a *unit* for each 32 of them, then floats:

    inputs    units: [32 / piece][4 tokens][piece] int8 | the tokens' scales, sums for the minima
    weights   units: [32 / piece][12 rows][piece] int8, perhaps the rows' sub-scales | the rows' scales, negated minima

A float or a sub-scale fills as many bytes as a piece: in tier I those of rows lie as r r s s, of tokens as t u t u.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from ..sizes import ROWS_AT_ONCE as ROWS
from . import neon
from .gemm_tile import TOKENS
from .vec import F32x2, F32x4, Float, I8x16, I32x4, I32x8, I64x4, Int, Val, inline

UNIT = 32
"""Inputs of a unit."""


class Tile(NamedTuple):
    """What a tile multiplies.

    piece       bytes of a row or a token in a register: 4 (sdot) or 8 (smmla)
    group       inputs that share float scales: 32 or a multiple
    sub_scales  whether each row has an integer scale for every unit
    minima      numbers of a row, and sums of a token, for a group
    """

    piece: int
    group: int
    sub_scales: bool
    minima: int

    @property
    def side(self) -> int:
        """Rows of a register of weights."""
        return 16 // self.piece

    @property
    def weight_unit(self) -> int:
        """Bytes of a unit of weights."""
        return ROWS * (UNIT + self.sub_scales * self.piece)

    @property
    def weight_record(self) -> int:
        """Bytes of a group of weights."""
        return self.group // UNIT * self.weight_unit + (1 + self.minima) * ROWS * self.piece

    @property
    def input_record(self) -> int:
        """Bytes of a group of inputs."""
        return TOKENS * (self.group + (1 + self.minima) * self.piece)

    def columns(self, tokens: int) -> int:
        """Return the accumulators of a register of rows: one a token, or one for two tokens."""
        return tokens if self.piece == 4 else (tokens + 1) // 2


def put_codes(k, tile: Tile, target: Val, place: Val, places: int, codes: Val) -> None:
    """Store 32 codes (I8x32) of row or token ``place``; ``target`` is where those of the first place begin."""
    parts = codes.bits(I32x8 if tile.piece == 4 else I64x4)
    for i in range(UNIT // tile.piece):
        k.store(target + place * tile.piece + places * tile.piece * i, parts.lane(i))


def put_row(k, tile: Tile, target: Val, place: Val, value: Val) -> None:
    """Store a float, or a sub-scale as int32, of a row among those of all rows."""
    k.store(target + place * tile.piece, value if tile.piece == 4 else value.bits(Float).splat(F32x2))


def put_token(k, tile: Tile, target: Val, token: Val, value: Val) -> None:
    """Store a float of a token among those of all tokens."""
    if tile.piece == 4:
        k.store(target + token * 4, value)
    else:
        for half in (0, 8):
            k.store(target + ((token >> 1) * 16 + (token & 1) * 4 + half), value)


def _columns(k, tile: Tile, kind: types.Type, source: Val, tokens: int) -> list[Val]:
    """Load what each accumulator of a register of rows is multiplied by: bytes (I8x16) or floats (F32x4)."""
    if tile.piece == 8:
        return [k.load(kind, source + 16 * i) for i in range(tile.columns(tokens))]
    words = k.load(I32x4 if kind is I8x16 else F32x4, source)
    return [words.shuffle([token] * 4).bits(kind) for token in range(tokens)]


def sums_kind(tile: Tile, tokens: int, kind: types.Type = F32x4) -> types.UniTuple:
    """Return the type of the accumulators of so many tokens: those of the first register of rows, then the others."""
    return types.UniTuple(kind, ROWS // tile.side * tile.columns(tokens))


def make_dots(tile: Tile, tokens: int):
    """Make an inlined function that adds the products of a unit, times sub-scales, to integer accumulators."""
    kind = sums_kind(tile, tokens, I32x4)

    @inline(kind, kind, Int, Int)
    def add_dots(k, sums, weights, inputs):
        sums, dot = k.members(sums), neon.dots_16 if tile.piece == 4 else neon.dots_2x2
        dots = [k.zero(I32x4)] * len(sums) if tile.sub_scales else sums
        for i in range(UNIT // tile.piece):
            columns = _columns(k, tile, I8x16, inputs + TOKENS * tile.piece * i, tokens)
            for r in range(ROWS // tile.side):
                rows = k.load(I8x16, weights + (ROWS * tile.piece * i + 16 * r))
                for c, column in enumerate(columns, r * len(columns)):
                    dots[c] = dot(k, dots[c], rows, column)
        if not tile.sub_scales:
            return tuple(dots)
        width = tile.columns(tokens)
        for r in range(ROWS // tile.side):
            scales = k.load(I32x4, weights + (ROWS * UNIT + 16 * r))
            for c in range(r * width, (r + 1) * width):
                sums[c] = sums[c] + dots[c] * scales
        return tuple(sums)

    return add_dots


def make_finish(tile: Tile, tokens: int):
    """Make an inlined function that adds integer sums times both scales, and the minima, to float accumulators."""
    kind = sums_kind(tile, tokens)

    @inline(kind, kind, sums_kind(tile, tokens, I32x4), Int, Int)
    def add_scaled(k, sums, dots, weights, inputs):
        sums, dots = k.members(sums), k.members(dots)
        for m in range(1 + tile.minima):
            columns = _columns(k, tile, F32x4, inputs + TOKENS * tile.piece * m, tokens)
            for r in range(ROWS // tile.side):
                rows = k.load(F32x4, weights + (ROWS * tile.piece * m + 16 * r))
                for c, column in enumerate(columns, r * len(columns)):
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


def make_out(tile: Tile, tokens: int):
    """Make an inlined function that stores the twelve rows of token t to ``out + t * stride``."""
    kind, columns = sums_kind(tile, tokens), tile.columns(tokens)

    @inline(types.none, kind, Int, Int)
    def store_rows(k, sums, out, stride):
        sums = k.members(sums)
        for t in range(tokens):
            for quad in range(ROWS // 4):
                if tile.piece == 4:
                    rows = sums[quad * columns + t]
                else:
                    low, high = (sums[(2 * quad + i) * columns + t // 2] for i in range(2))
                    rows = low.shuffle([i + t % 2 for i in (0, 2, 4, 6)], high)
                k.store(out + stride * t + 16 * quad, rows)

    return store_rows
