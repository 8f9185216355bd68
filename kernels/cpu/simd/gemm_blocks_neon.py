"""Weight rows and inputs for ``gemm_tile_neon``, and products of their panels (tiers N and I).

Weights are decoded as the declaration of their format says (``decode``). A format whose codes times sub-scales fit into
bytes has one scale for a whole block.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import njit, types

from ...formats import Format
from ...formats.format import Numbers
from .decode import block_minimum, block_scale, codes, number_floats, numbers
from .gemm_tile import COUNTS, TOKENS, copy_float
from .gemm_tile_neon import (
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
    put_row,
    put_token,
    sums_kind,
)
from .quantize import a8_scale, q8k_scale, round_to_codes, sixteen_sums
from .vec import JIT, F32x16, F32x32, Float, I32x4, Int, Val, inline


def _scales_join(fmt: Format) -> bool:
    """Return whether every code times its sub-scale fits into a byte."""
    if fmt.scales is None or not isinstance(fmt.codes, Numbers):
        return False
    return max(map(abs, fmt.codes.range)) * max(map(abs, fmt.scales.range)) < 128


def tile_of(fmt: Format, piece: int) -> Tile:
    """Return the tile of a format (``piece``: see ``Tile``)."""
    group = fmt.block_elems if _scales_join(fmt) else UNIT
    return Tile(piece, group, group // fmt.group if fmt.minima is not None else 0)


def make_decode(fmt: Format, tile: Tile):
    """Make an inlined function that decodes the block at ``block`` into row ``place`` of its groups."""

    def factors(k, block: Val, spec: Numbers | None, whole: Val) -> list[Val]:
        """Return a float for each group of the block."""
        if spec is None:
            return [whole.lane(0)]
        each = number_floats(k, spec, block) * whole.shuffle(range(spec.count))
        return [each.lane(i) for i in range(spec.count)]

    @inline(types.none, Int, Int, Int)
    def decode(k, block, target, place):
        joined = tile.group > UNIT
        sub_scales = numbers(k, fmt.scales, block, 0, fmt.scales.count) if joined else None
        scales = factors(k, block, None if joined else fmt.scales, block_scale(k, fmt, block, F32x16))
        minima = factors(k, block, fmt.minima, block_minimum(k, fmt, block, F32x16)) if tile.minima else []
        for group in range(fmt.block_elems // tile.group):
            record = target + tile.record(ROWS) * group
            for first in range(0, tile.group, UNIT):
                values = codes(k, fmt, block, tile.group * group + first, UNIT)
                if sub_scales is not None:
                    values = values * sub_scales.shuffle([(first + i) // fmt.group for i in range(UNIT)])
                put_codes(k, tile, record + ROWS * first, place, ROWS, values)
            least = [k.const(Float, 0.0) - m for m in minima[tile.minima * group : tile.minima * (group + 1)]]
            for i, value in enumerate([scales[group], *least]):
                put_row(k, tile, record + ROWS * (tile.group + tile.piece * i), place, value)

    return decode


def make_pack(fmt: Format, tile: Tile) -> Any:
    """Make ``pack`` of a Gemm, for inputs rounded as the format's activation says."""
    scale_of, parts = {"a8": (a8_scale, 1), "q8k": (q8k_scale, 256 // tile.group)}[fmt.activation]
    record, group, chunk = tile.record(TOKENS), tile.group, parts * tile.group

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack_group(k, target, token, x, scale, inverse):
        sums = []
        for first in range(0, group, UNIT):
            values = round_to_codes(k, k.load(F32x32, x + 4 * first), inverse)
            put_codes(k, tile, target + TOKENS * first, token, TOKENS, values)
            low, high = (part.sext(types.int32) for part in sixteen_sums(k, values))
            sums += [low, high] if fmt.group == 16 else [low + high]
        floats = [scale, *(total.to_float(Float) * scale for total in sums[: tile.minima])]
        for i, value in enumerate(floats):
            put_token(k, tile, target + TOKENS * (group + tile.piece * i), token, value)

    @njit(**JIT)
    def pack(x, n, panel, slot):
        target = panel + slot // TOKENS * (n // group * record)
        for _ in range(n // chunk):
            scale, inverse = scale_of(x)
            for _ in range(parts):
                pack_group(target, slot % TOKENS, x, scale, inverse)
                target += record
                x += 4 * group

    return pack


def _multiply(tile: Tile, parts: int, tokens: int) -> Any:
    add_dots, add_scaled, store_rows = (make(tile, tokens) for make in (make_dots, make_finish, make_out))
    kind = sums_kind(tile, tokens)
    zero, load, store, no_dots = make_zero(kind), make_load(kind), make_store(kind), make_zero(sums_kind(tile, tokens, I32x4))
    units, row_floats, token_floats = tile.group // UNIT, tile.record(ROWS) - ROWS * tile.group, tile.record(TOKENS) - TOKENS * tile.group

    @njit(**JIT)
    def multiply(weights, inputs, chunks, sums, fresh, out, stride):
        total = zero() if fresh else load(sums)
        for _ in range(chunks * parts):
            dots = no_dots()
            for _ in range(units):
                dots = add_dots(dots, weights, inputs)
                weights += ROWS * UNIT
                inputs += TOKENS * UNIT
            total = add_scaled(total, dots, weights, inputs)
            weights += row_floats
            inputs += token_floats
        if out:
            store_rows(total, out, stride)
        else:
            store(sums, total)

    return multiply


@cache
def multiply_blocks(tile: Tile, parts: int) -> tuple[Any, ...]:
    """Make the four ``multiply`` of a Gemm whose chunks are ``parts`` groups."""
    return tuple(_multiply(tile, parts, tokens) for tokens in COUNTS)
