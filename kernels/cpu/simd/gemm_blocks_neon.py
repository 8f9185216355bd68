"""Weight rows and inputs for ``gemm_tile_neon``, and products of their panels (tier N).

Weights are decoded as the declaration of their format says (``decode``), codes times sub-scales if they fit into
bytes. A block has one float scale, and its products are summed in integers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import njit, types

from ...formats import Format
from ...formats.format import Numbers
from .decode import block_minimum, block_scale, codes, number_floats, numbers
from .gemm_tile import COUNTS, TOKENS
from .gemm_tile_neon import (
    PIECE,
    ROWS,
    UNIT,
    Tile,
    make_dots,
    make_finish,
    make_load,
    make_out,
    make_store,
    make_zero,
    put_codes,
    sums_kind,
)
from .quantize import a8_scale, q8k_scale, round_to_codes, sixteen_sums
from .vec import JIT, F32x4, F32x32, Float, I32x4, Int, Vec, inline


def _scales_join(fmt: Format) -> bool:
    """Return whether every code times its sub-scale fits into a byte."""
    if fmt.scales is None or not isinstance(fmt.codes, Numbers):
        return False
    return max(map(abs, fmt.codes.range)) * max(map(abs, fmt.scales.range)) < 128


def tile_of(fmt: Format) -> Tile:
    """Return the tile of a format."""
    minima = 0 if fmt.minima is None else fmt.minima.count
    return Tile(fmt.block_elems, fmt.scales is not None and not _scales_join(fmt), minima)


def make_decode(fmt: Format, tile: Tile):
    """Make an inlined function that decodes the block at ``block`` into row ``place`` of its record."""

    @inline(types.none, Int, Int, Int)
    def decode(k, block, target, place):
        scales = None if fmt.scales is None else numbers(k, fmt.scales, block, 0, fmt.scales.count)
        wide = scales.sext(Vec("i32", fmt.scales.count)) if tile.sub_scales else None
        for unit in range(tile.group // UNIT):
            at, first = target + tile.weight_unit * unit, UNIT * unit
            values = codes(k, fmt, block, first, UNIT)
            if tile.sub_scales:
                k.store(at + ROWS * UNIT + place * PIECE, wide.lane(unit))
            elif scales is not None:
                values = values * scales.shuffle([(first + i) // fmt.group for i in range(UNIT)])
            put_codes(k, at, place, ROWS, values)
        floats = [block_scale(k, fmt, block, F32x4).lane(0)]
        if tile.minima:
            minima = number_floats(k, fmt.minima, block)
            least = (k.zero(F32x4) - block_minimum(k, fmt, block, F32x4)).shuffle([0] * tile.minima)
            floats += [(minima * least).lane(i) for i in range(tile.minima)]
        for i, value in enumerate(floats):
            k.store(at + (tile.weight_unit + ROWS * PIECE * i) + place * PIECE, value)

    return decode


def make_pack(fmt: Format, tile: Tile) -> Any:
    """Make ``pack`` of a Gemm, for inputs rounded as the format's activation says."""
    scale_of = {"a8": a8_scale, "q8k": q8k_scale}[fmt.activation]
    record, group = tile.input_record, tile.group

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack_group(k, target, token, x, scale, inverse):
        sums = []
        for first in range(0, group, UNIT):
            values = round_to_codes(k, k.load(F32x32, x + 4 * first), inverse)
            put_codes(k, target + TOKENS * first, token, TOKENS, values)
            low, high = (part.sext(types.int32) for part in sixteen_sums(k, values))
            sums += [low, high] if fmt.group == 16 else [low + high]
        floats = [scale, *(total.to_float(Float) * scale for total in sums[: tile.minima])]
        for i, value in enumerate(floats):
            k.store(target + TOKENS * (group + PIECE * i) + token * PIECE, value)

    @njit(**JIT)
    def pack(x, n, panel, slot):
        target = panel + slot // TOKENS * (n // group * record)
        for _ in range(n // group):
            scale, inverse = scale_of(x)
            pack_group(target, slot % TOKENS, x, scale, inverse)
            target += record
            x += 4 * group

    return pack


def _multiply(tile: Tile, tokens: int) -> Any:
    add_dots, add_scaled, store_rows = (make_dots(tile, tokens), make_finish(tile, tokens), make_out(tokens))
    kind, whole = sums_kind(tokens), sums_kind(tokens, I32x4)
    zero, no_dots, load, store = make_zero(kind), make_zero(whole), make_load(kind), make_store(kind)
    units, weight_unit, input_unit = tile.group // UNIT, tile.weight_unit, TOKENS * UNIT
    weight_floats, input_floats = tile.weight_record - units * weight_unit, tile.input_record - units * input_unit

    @njit(**JIT)
    def multiply(weights, inputs, chunks, sums, fresh, out, stride):
        total = zero() if fresh else load(sums)
        for _ in range(chunks):
            dots = no_dots()
            for _ in range(units):
                dots = add_dots(dots, weights, inputs)
                weights += weight_unit
                inputs += input_unit
            total = add_scaled(total, dots, weights, inputs)
            weights += weight_floats
            inputs += input_floats
        if out:
            store_rows(total, out, stride)
        else:
            store(sums, total)

    return multiply


@cache
def multiply_blocks(tile: Tile) -> tuple[Any, ...]:
    """Make the four ``multiply`` of a Gemm."""
    return tuple(_multiply(tile, tokens) for tokens in COUNTS)
