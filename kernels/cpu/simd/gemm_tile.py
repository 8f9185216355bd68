"""The register tile of the int8 matrix product (tier A): 4 weight rows x 4 tokens x 512 inputs.

Both operands lie in *panels*, contiguous in the order in which the tile reads them. A record covers a chunk of 512
inputs:

    inputs    8 slices of [4 tokens][64 bytes] int8 | [4][16] f32 lane scales | [4][16] i32 lane offsets
    weights   8 slices of [4 rows][64 bytes] uint8 | [4][16] f32 lane scales

32-bit lane L of every slice belongs to scale group L (32 inputs) of the chunk, so a chunk costs 128 ``vpdpbusd`` and
then one conversion, one product of the two scales and one multiply-add a row and token. The offsets take out what the
decoders add to make weights unsigned. Formats with mins append one or two vectors a row (-dmin m_j) and a token (sums
of the inputs), multiplied in float.
"""

from __future__ import annotations

from numba import types

from . import x86
from .vec import F32x16, Float, I8x64, I32x16, Int, Val, step

TILE = 4
SLICES = 8
CHUNK = 512
CODES = SLICES * TILE * 64
INPUT_RECORD = CODES + 2 * TILE * 64
MIN_BYTES = TILE * 64


def weight_record(mins: int) -> int:
    """Bytes of a chunk of four weight rows with ``mins`` vectors of mins a row."""
    return CODES + TILE * 64 + mins * MIN_BYTES


def _tile(mins: int, limbs: int = 1):
    """A step that adds one chunk to the 16 sums at ``sums``; ``input_mins`` are the inputs' sums for the mins.

    With two limbs, the records of the high and of the middle one are taken together: 32 products of 9 + 8 bits and a
    shift by 8 fit into 32 bits, all three limbs would not.
    """

    @step(types.none, Int, Int, Int, Int)
    def tile(k, weights, inputs, input_mins, sums):
        dots: list[list[Val]] = []
        for limb in range(limbs):
            record = INPUT_RECORD * limb
            offsets = [k.load(I32x16, inputs + (record + CODES + 64 * (TILE + t))) for t in range(TILE)]
            if limb:
                dots = [[(dots[r][t] << 8) + offsets[t] for t in range(TILE)] for r in range(TILE)]
            else:
                dots = [list(offsets) for _ in range(TILE)]
            for s in range(SLICES):
                rows = [k.load(I8x64, weights + 64 * (TILE * s + r)) for r in range(TILE)]
                for t in range(TILE):
                    codes = k.load(I8x64, inputs + (record + 64 * (TILE * s + t)))
                    for r in range(TILE):
                        dots[r][t] = x86.dpbusd_512(k, dots[r][t], rows[r], codes)
        for t in range(TILE):
            token_scale = k.load(F32x16, inputs + (INPUT_RECORD * (limbs - 1) + CODES + 64 * t))
            for r in range(TILE):
                at = sums + 64 * (TILE * t + r)
                scale = k.load(F32x16, weights + (CODES + 64 * r)) * token_scale
                total = k.fma(dots[r][t].to_float(F32x16), scale, k.load(F32x16, at))
                for m in range(mins):
                    row_mins = k.load(F32x16, weights + (CODES + 64 * (TILE + TILE * m + r)))
                    total = k.fma(row_mins, k.load(F32x16, input_mins + 64 * (TILE * m + t)), total)
                k.store(at, total)

    return tile


TILES = tuple(_tile(mins) for mins in range(3))
UPPER_TILE = _tile(0, limbs=2)


@step(types.none, Int)
def clear_sums(k, sums):
    for i in range(TILE * TILE):
        k.store(sums + 64 * i, k.zero(F32x16))


def _interleave_add(a: Val, b: Val, width: int) -> Val:
    """Halve runs of 2 * width lanes: sums of a's runs and of b's runs, in turn."""
    low: list[int] = []
    high: list[int] = []
    for base in range(0, 16, 2 * width):
        for vector in (0, 16):
            low += range(vector + base, vector + base + width)
            high += range(vector + base + width, vector + base + 2 * width)
    return a.shuffle(low, b) + a.shuffle(high, b)


@step(types.none, Int, Int, Int)
def reduce_sums(k, sums, out, stride):
    """Sum the lanes of the 16 vectors at ``sums``; the four rows of token t go to ``out + t * stride``."""
    vectors = [k.load(F32x16, sums + 64 * i) for i in range(16)]
    width = 8
    while width:
        half = len(vectors) // 2
        vectors = [_interleave_add(vectors[i], vectors[i + half], width) for i in range(half)]
        width //= 2
    for t in range(TILE):
        k.store(out + stride * t, vectors[0].shuffle(range(TILE * t, TILE * t + TILE)))


@step(types.none, Int, Int)
def copy_float(k, target, source):
    k.store(target, k.load(Float, source))
