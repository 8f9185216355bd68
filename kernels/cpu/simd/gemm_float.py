"""Matrix product of floats (F32, F16, BF16, F8_E4M3, MXFP4) with float inputs: tiles of 6 rows x 4 tokens x 128 inputs
(tier A).

Panels as in ``gemm_tile``: a chunk of 128 inputs is 8 slices of [6 rows][16 f32] and [4 tokens][16 f32]. A tile has no
integer sums, so twice as many float sums stay in registers: two groups of three rows, one after the other.
"""

from __future__ import annotations

from numba import types

from .float_rows import power_of_two
from .gemm_tile import ROWS as GROUP
from .gemm_tile import SLICES, SUMS, TOKENS, reduce_lanes, totals
from .vec import F32x16, I8x16, I16x16, I32x16, Int, Val, inline

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


def _plain(fmt: str):
    """A function that decodes 128 plain numbers to 8 vectors."""

    def decode(k, source: Val) -> list[Val]:
        size = BLOCKS[fmt][1]
        found = []
        for s in range(SLICES):
            address = source + 16 * size * s
            if fmt == "F16":
                found.append(k.half_to_float(k.load(I16x16, address)))
            elif fmt == "BF16":
                found.append((k.load(I16x16, address).zext(I32x16) << 16).bits(F32x16))
            else:
                found.append(k.load(F32x16, address))
        return found

    return decode


# The same steps as in ``float_rows``; here the scale is multiplied in at once, which loses nothing either.
def _decode_f8_e4m3(k, source: Val) -> list[Val]:
    scale = power_of_two(k, source, 127, F32x16)
    found = []
    for s in range(SLICES):
        codes = k.load(I8x16, source + 1 + 16 * s).sext(I16x16)
        nan = (codes & 0x7F).compare("==", 0x7F)
        halves = k.select(nan, k.const(I16x16, 0x7E00), (codes << 7) & -0x4001)
        found.append(k.half_to_float(halves) * 2.0**8 * scale)
    return found


def _decode_mxfp4(k, source: Val) -> list[Val]:
    found = []
    for block in range(SLICES // 2):
        at = source + BLOCKS["MXFP4"][1] * block
        scale, codes = power_of_two(k, at, 128, F32x16), k.load(I8x16, at + 1)
        for nibbles in (codes & 0x0F, (codes >> 4) & 0x0F):
            wide = nibbles.zext(I16x16)
            halves = ((wide << 9) & 0x0E00) | ((wide & 8) << 12)
            found.append(k.half_to_float(halves) * 2.0**15 * scale)
    return found


def _spread(decode_chunk, places: int):
    """An inlined function that decodes 128 numbers at ``source`` into row or token ``place`` of a record."""

    @inline(types.none, Int, Int, Int)
    def decode(k, source, target, place):
        for s, values in enumerate(decode_chunk(k, source)):
            k.store(target + place * 64 + 64 * places * s, values)

    return decode


@inline(types.none, Int, Int)
def clear_token(k, target, token):
    """Zeros for one token of a record."""
    for s in range(SLICES):
        k.store(target + token * 64 + 64 * TOKENS * s, k.zero(F32x16))


BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F8_E4M3": (128, 129), "MXFP4": (32, 17)}
"""Weights and bytes of a block, of which a chunk holds a whole number."""

SPREAD = {fmt: _spread(_plain(fmt), ROWS) for fmt in ("F32", "F16", "BF16")}
SPREAD |= {"F8_E4M3": _spread(_decode_f8_e4m3, ROWS), "MXFP4": _spread(_decode_mxfp4, ROWS)}
"""Decoders of weight rows."""
spread_inputs = _spread(_plain("F32"), TOKENS)
