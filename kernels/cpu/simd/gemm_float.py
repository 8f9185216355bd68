"""GEMM of weights decoded to floats with float inputs: tiles of 6 rows x 1 to 4 tokens x 128 inputs.

Panels as in ``gemm_tile``: a chunk of 128 inputs is 8 slices of [6 rows][16 f32] and [4 tokens][16 f32]. A tile needs
no integer accumulators, so twice as many float accumulators fit into registers: two groups of three rows in sequence.

In tier N slices have four floats, and the tile takes 32 inputs.
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS, Format
from .decode import block_minimum, block_scale, code_floats, group_lanes, number_floats, rest
from .gemm_tile import COUNTS, SLICES, TOKENS, reduce_lanes, totals
from .gemm_tile import ROWS as GROUP
from .tiers import NEON_TIER
from .vec import F32x16, I16x16, I32x16, Int, Val, Vec, inline

ROWS = 2 * GROUP
CHUNK = 16 * SLICES
LANES = 4 if NEON_TIER else 16
LINE = 4 * LANES
"""Floats of a row or a token in a slice, and their bytes."""
TILES_A_CHUNK = 16 // LANES
WEIGHT_RECORD = CHUNK * ROWS * 4
INPUT_RECORD = CHUNK * TOKENS * 4

_Lanes = Vec("f32", LANES)
TOTALS = {tokens: totals(ROWS * tokens, _Lanes) for tokens in COUNTS}
"""Accumulators of a tile, by its number of tokens: those of the first three rows, token by token, then the others'."""


def _reduce(tokens: int):
    @inline(types.none, TOTALS[tokens].kind, Int, Int)
    def reduce_sums(k, sums, out, stride):
        sums, half = k.members(sums), GROUP * tokens
        reduce_lanes(k, sums[:half], out, stride)
        reduce_lanes(k, sums[half:], out + 4 * GROUP, stride)

    return reduce_sums


def _tile(tokens: int):
    @inline(TOTALS[tokens].kind, TOTALS[tokens].kind, Int, Int)
    def tile(k, sums, weights, inputs):
        sums = k.members(sums)
        for s in range(SLICES):
            rows = [(weights, ROWS * s + r) for r in range(ROWS)]
            columns = [(inputs, TOKENS * s + t) for t in range(tokens)]
            # the operands of one side stay in registers, those of the other come one by one; AArch64 loads them in
            # pairs, for which four and two leave room and six and two do not
            stay, come = (columns, rows) if NEON_TIER else (rows, columns)
            loaded = [k.load(_Lanes, base + LINE * at) for base, at in stay]
            for j, (base, at) in enumerate(come):
                other = k.load(_Lanes, base + LINE * at)
                for i, value in enumerate(loaded):
                    r, t = (j, i) if NEON_TIER else (i, j)
                    n = r // GROUP * GROUP * tokens + GROUP * t + r % GROUP
                    sums[n] = k.fma(value, other, sums[n])
        return tuple(sums)

    return tile


TILES = {tokens: _tile(tokens) for tokens in COUNTS}
"""Inlined functions, by number of tokens, that add the products of eight slices to the tile's sums."""

REDUCE = {tokens: _reduce(tokens) for tokens in COUNTS}
"""Inlined functions, by number of tokens, that add up the lanes of a tile's sums and store the six rows of token t at
``out + t * stride``."""


def _plain(k, fmt: Format, source: Val) -> list[Val]:
    """Decode 128 weights of a format without blocks to 8 vectors."""
    at = [source + 16 * fmt.block_bytes * s for s in range(SLICES)]
    if fmt.name == "F32":
        return [k.load(F32x16, address) for address in at]
    halves = [k.load(I16x16, address) for address in at]
    if fmt.name == "F16":
        return [k.half_to_float(part) for part in halves]
    return [(part.zext(I32x16) << 16).bits(F32x16) for part in halves]


def _blocks(k, fmt: Format, source: Val, scales_at: Val | None) -> list[Val]:
    """Decode 128 weights of blocks, or one block of 256, with the dequantizer's own roundings.

    If scales are stored apart, their bytes are at address ``scales_at``.
    """
    weights = []
    for start in range(0, max(CHUNK, fmt.block_elems), fmt.block_elems):
        block = source + start // fmt.block_elems * fmt.block_bytes
        scale = block_scale(k, fmt, block if scales_at is None else scales_at + start // fmt.block_elems, F32x16)
        scales = minima = None
        if fmt.scales is not None:
            scales = number_floats(k, fmt.scales, block) * scale.shuffle(range(fmt.scales.count))
        if fmt.minimum is not None:
            minima = block_minimum(k, fmt, block, F32x16)
        if fmt.minima is not None:
            minima = number_floats(k, fmt.minima, block) * minima.shuffle(range(fmt.minima.count))
        for first in range(0, fmt.block_elems, 16):
            values, group = code_floats(k, fmt, block, first, 16), group_lanes(fmt, first, 16)
            values = values if rest(fmt) == 1 else values * rest(fmt)
            values = values * (scale if scales is None else scales.shuffle(group))
            if minima is not None:
                values = values - (minima if fmt.minima is None else minima.shuffle(group))
            weights.append(values)
    return weights


def _put(k, places: int, target: Val, place: Val, weights: list[Val]) -> None:
    """Store vectors of 16 numbers, each in one slice or in several that follow each other."""
    for s, values in enumerate(weights):
        for first in range(0, 16, LANES):
            slice_ = (16 * s + first) // LANES
            part = values if LANES == 16 else values.shuffle(range(first, first + LANES))
            k.store(target + place * LINE + LINE * places * slice_, part)


@inline(types.none, Int, Int)
def clear_token(k, target, token):
    """Zero one token of a record."""
    _put(k, TOKENS, target, token, [k.zero(F32x16)] * SLICES)


def spread_weights(fmt: Format, apart: bool = False, places: int = ROWS):
    """Make an inlined function that decodes ``max(CHUNK, fmt.block_elems)`` weights into row ``place`` of records.

    apart  take scales from ``scales``
    """

    @inline(types.none, Int, Int, Int, Int)
    def decode(k, source, scales, target, place):
        plain = fmt.block_elems == 1
        values = _plain(k, fmt, source) if plain else _blocks(k, fmt, source, scales if apart else None)
        _put(k, places, target, place, values)

    return decode


spread_inputs = spread_weights(FORMATS["F32"], places=TOKENS)
"""Inlined function that does the same for ``CHUNK`` inputs of a token."""
