"""Matrix product of plain floats (F32, F16, BF16) with float inputs: tiles of 6 rows x 4 tokens x 128 inputs (tier A).

Panels as in ``gemm_tile``: a chunk of 128 inputs is 8 slices of [6 rows][16 f32] and [4 tokens][16 f32]. A tile has no
integer sums, so twice as many float sums stay in registers: two groups of three rows, one after the other.
"""

from __future__ import annotations

from numba import types

from .gemm_tile import ROWS as GROUP
from .gemm_tile import SLICES, SUMS, TOKENS, reduce_lanes, totals
from .vec import F32x16, I16x16, I32x16, Int, Val, inline

ROWS = 2 * GROUP
CHUNK = 16 * SLICES
WEIGHT_RECORD = CHUNK * ROWS * 4
INPUT_RECORD = CHUNK * TOKENS * 4

TOTALS = totals(2 * SUMS)


@inline(types.none, TOTALS.kind, Int, Int)
def reduce_sums(k, sums, out, stride):
    """The six rows of token t go to ``out + t * stride``."""
    sums = k.members(sums)
    reduce_lanes(k, sums[:SUMS], out, stride)
    reduce_lanes(k, sums[SUMS:], out + 4 * GROUP, stride)


@inline(TOTALS.kind, TOTALS.kind, Int, Int)
def tile(k, sums, weights, inputs):
    """Add one chunk to the sums."""
    sums = k.members(sums)
    for s in range(SLICES):
        rows = [k.load(F32x16, weights + 64 * (ROWS * s + r)) for r in range(ROWS)]
        for t in range(TOKENS):
            x = k.load(F32x16, inputs + 64 * (TOKENS * s + t))
            for r in range(ROWS):
                i = r // GROUP * SUMS + GROUP * t + r % GROUP
                sums[i] = k.fma(rows[r], x, sums[i])
    return tuple(sums)


def _decode(k, fmt: str, address: Val) -> Val:
    """16 weights as float32."""
    if fmt == "F16":
        return k.half_to_float(k.load(I16x16, address))
    if fmt == "BF16":
        return (k.load(I16x16, address).zext(I32x16) << 16).bits(F32x16)
    return k.load(F32x16, address)


def _spread(fmt: str, places: int):
    """An inlined function that decodes 128 numbers at ``source`` into row or token ``place`` of a record."""
    size = SIZES[fmt]

    @inline(types.none, Int, Int, Int)
    def decode(k, source, target, place):
        for s in range(SLICES):
            k.store(target + place * 64 + 64 * places * s, _decode(k, fmt, source + 16 * size * s))

    return decode


@inline(types.none, Int, Int)
def clear_token(k, target, token):
    """Zeros for one token of a record."""
    for s in range(SLICES):
        k.store(target + token * 64 + 64 * TOKENS * s, k.zero(F32x16))


SIZES = {"F32": 4, "F16": 2, "BF16": 2}
SPREAD = {fmt: _spread(fmt, ROWS) for fmt in SIZES}
"""Decoders of weight rows."""
spread_inputs = _spread("F32", TOKENS)
