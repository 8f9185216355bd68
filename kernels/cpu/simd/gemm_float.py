"""Matrix product of plain floats (F32, F16, BF16) with float inputs: tiles of 4 rows x 4 tokens x 128 inputs (tier A).

Panels as in ``gemm_tile``: a chunk of 128 inputs is 8 slices of [4 rows or tokens][16 f32].
"""

from __future__ import annotations

from numba import types

from .gemm_tile import SLICES, TILE
from .vec import F32x16, I16x16, I32x16, Int, Val, step

CHUNK = 16 * SLICES
RECORD = CHUNK * TILE * 4


@step(types.none, Int, Int, Int)
def tile(k, weights, inputs, sums):
    """Add one chunk to the 16 sums (token-major) at ``sums``."""
    places = [[sums + 64 * (TILE * t + r) for t in range(TILE)] for r in range(TILE)]
    totals = [[k.load(F32x16, place) for place in row] for row in places]
    for s in range(SLICES):
        rows = [k.load(F32x16, weights + 64 * (TILE * s + r)) for r in range(TILE)]
        for t in range(TILE):
            x = k.load(F32x16, inputs + 64 * (TILE * s + t))
            for r in range(TILE):
                totals[r][t] = k.fma(rows[r], x, totals[r][t])
    for r in range(TILE):
        for t in range(TILE):
            k.store(places[r][t], totals[r][t])


def _decode(k, fmt: str, address: Val) -> Val:
    """16 weights as float32."""
    if fmt == "F16":
        return k.half_to_float(k.load(I16x16, address))
    if fmt == "BF16":
        return (k.load(I16x16, address).zext(I32x16) << 16).bits(F32x16)
    return k.load(F32x16, address)


def _spread(fmt: str):
    """A step that decodes 128 numbers at ``source`` into row or token ``place`` of a record."""
    size = 4 if fmt == "F32" else 2

    @step(types.none, Int, Int, Int)
    def decode(k, source, target, place):
        for s in range(SLICES):
            k.store(target + place * 64 + 64 * TILE * s, _decode(k, fmt, source + 16 * size * s))

    return decode


@step(types.none, Int, Int)
def clear_place(k, target, place):
    """Zeros for one row or token of a record."""
    for s in range(SLICES):
        k.store(target + place * 64 + 64 * TILE * s, k.zero(F32x16))


SIZES = {"F32": 4, "F16": 2, "BF16": 2}
SPREAD = {fmt: _spread(fmt) for fmt in SIZES}
spread_f32 = SPREAD["F32"]
