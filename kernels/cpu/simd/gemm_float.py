"""GEMM of weights decoded to floats with float inputs: tiles of 6 rows x 1 to 4 tokens x 128 inputs (tier A).

Panels as in ``gemm_tile``: a chunk of 128 inputs is 8 slices of [6 rows][16 f32] and [4 tokens][16 f32]. A tile needs
no integer accumulators, so twice as many float accumulators fit into registers: two groups of three rows in sequence.
"""

from __future__ import annotations

from numba import types

from ...formats import FORMATS, Format
from .decode import block_minimum, block_scale, code_floats, group_lanes, number_floats, rest
from .gemm_tile import COUNTS, SLICES, TOKENS, reduce_lanes, totals
from .gemm_tile import ROWS as GROUP
from .vec import F32x16, I16x16, I32x16, Int, Val, inline

ROWS = 2 * GROUP
CHUNK = 16 * SLICES
WEIGHT_RECORD = CHUNK * ROWS * 4
INPUT_RECORD = CHUNK * TOKENS * 4

TOTALS = {tokens: totals(ROWS * tokens) for tokens in COUNTS}
"""Accumulators of a tile by its tokens: token-major for the first three rows, then for the others."""


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
            rows = [k.load(F32x16, weights + 64 * (ROWS * s + r)) for r in range(ROWS)]
            for t in range(tokens):
                x = k.load(F32x16, inputs + 64 * (TOKENS * s + t))
                for r in range(ROWS):
                    i = r // GROUP * GROUP * tokens + GROUP * t + r % GROUP
                    sums[i] = k.fma(rows[r], x, sums[i])
        return tuple(sums)

    return tile


TILES = {tokens: _tile(tokens) for tokens in COUNTS}
"""Inlined functions that add one chunk to the sums of so many tokens."""

REDUCE = {tokens: _reduce(tokens) for tokens in COUNTS}
"""Inlined functions that reduce the six rows of token t to ``out + t * stride``."""


def _plain(name: str):
    """Make a function that decodes 128 plain numbers to 8 vectors."""
    step = 16 * FORMATS[name].block_bytes

    def decode(k, source: Val) -> list[Val]:
        if name == "F32":
            return [k.load(F32x16, source + step * s) for s in range(SLICES)]
        halves = [k.load(I16x16, source + step * s) for s in range(SLICES)]
        if name == "F16":
            return [k.half_to_float(part) for part in halves]
        return [(part.zext(I32x16) << 16).bits(F32x16) for part in halves]

    return decode


def _blocks(fmt: Format):
    """Make a function that decodes 128 weights of blocks, or one block of 256, with the dequantizer's own roundings.

    The bytes of scales lie at ``scales_at`` where they lie apart.
    """

    def decode(k, source: Val, scales_at: Val | None = None) -> list[Val]:
        weights = []
        for start in range(0, max(CHUNK, fmt.block_elems), fmt.block_elems):
            block = source + start // fmt.block_elems * fmt.block_bytes
            scale = block_scale(k, fmt, block if scales_at is None else scales_at + start // fmt.block_elems, F32x16)
            scales = minima = None
            if fmt.scales is not None:
                count = fmt.scales.count
                scales = number_floats(k, fmt.scales, block) * scale.shuffle(range(count))
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

    return decode


def _spread(decode_chunk, places: int):
    """Make an inlined function that decodes numbers at ``source`` into row or token ``place`` of one or two records."""

    @inline(types.none, Int, Int, Int)
    def decode(k, source, target, place):
        for s, values in enumerate(decode_chunk(k, source)):
            k.store(target + place * 64 + 64 * places * s, values)

    return decode


@inline(types.none, Int, Int)
def clear_token(k, target, token):
    """Zero one token of a record."""
    for s in range(SLICES):
        k.store(target + token * 64 + 64 * TOKENS * s, k.zero(F32x16))


def spread_weights(fmt: Format):
    """Make the decoder of a weight row: ``max(CHUNK, fmt.block_elems)`` weights into their records."""
    return _spread(_plain(fmt.name) if fmt.block_elems == 1 else _blocks(fmt), ROWS)


def spread_apart(fmt: Format):
    """Make the decoder of ``CHUNK`` weights whose codes and scales lie apart."""
    decode_chunk = _blocks(fmt)

    @inline(types.none, Int, Int, Int, Int)
    def decode(k, codes, scales, target, place):
        for s, values in enumerate(decode_chunk(k, codes, scales)):
            k.store(target + place * 64 + 64 * ROWS * s, values)

    return decode


spread_inputs = _spread(_plain("F32"), TOKENS)
