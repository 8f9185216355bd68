"""Q8_0 rows in tier N (NEON with dotprod), for A8 and float activations: blocks of 32, f16 scale and 32 int8.

A step processes four blocks: the ``sdot`` of a block add up in one register; its scale is a lane of the four products
of scales.

Packed buffer, per 64 inputs: 64 codes | 2 f32 (d_x of each block).
"""

from __future__ import annotations

from numba import njit, types

from ...formats import FORMATS
from .helpers import pack_floats, store_float
from .neon import dots_16, look_up
from .quantize import a8_scale, store_codes
from .row_kernel import LANES_PAIR_4, Part, RowKernel, make_rows, records
from .vec import JIT, F32x2, F32x4, Float, I8x16, I16x4, I32x4, Int, Val, inline

BLOCK = FORMATS["Q8_0"].block_bytes
_PACKED = 64 + 8


def _dots(k, block: Val, x: Val) -> Val:
    """Return the lane sums of a block of weights and its codes."""
    dots = k.zero(I32x4)
    for at in (0, 16):
        dots = dots_16(k, dots, k.load(I8x16, block + (2 + at)), k.load(I8x16, x + at))
    return dots.to_float(F32x4)


def _blocks(k, sums: Val, weights: Val, x: Val, count: int) -> tuple[Val, Val]:
    """Add ``count`` blocks (1, 2 or 4) to the sums, alternately."""
    totals = k.members(sums)
    halves = [k.load(types.int16, weights + BLOCK * i) for i in range(count)]
    d = k.half_to_float(k.gather(I16x4, halves + halves[-1:] * (4 - count)))
    first = k.load(F32x2, x + 64) if count > 1 else k.load(Float, x + 64).splat(F32x2)
    d = d * first.cat(k.load(F32x2, x + (_PACKED + 64)) if count == 4 else first)
    for i in range(count):
        dots = _dots(k, weights + BLOCK * i, x + (_PACKED * (i // 2) + 32 * (i % 2)))
        totals[i % 2] = k.fma(dots, d.shuffle([i] * 4), totals[i % 2])
    return totals[0], totals[1]


def _part(count: int) -> Part:
    @inline(LANES_PAIR_4.kind, LANES_PAIR_4.kind, Int, Int)
    def add(k, sums, weights, x):
        return _blocks(k, sums, weights, x, count)

    return Part(32 * count, add, BLOCK * count, _PACKED * count // 2)


@njit(**JIT)
def _pack(x, n, buffer):
    for block in range(n // 32):
        target, second = buffer + (block >> 1) * _PACKED, block & 1
        scale, inverse = a8_scale(x)
        store_codes(target + 32 * second, x, inverse)
        store_float(target + 64 + 4 * second, scale)
        x += 128


A8 = RowKernel(_pack, make_rows(LANES_PAIR_4, 3, _part(4), _part(2), _part(1)), records(64, _PACKED))


# -- float activations
_TOP_BYTES = [place for byte in range(16) for place in (0xFF, 0xFF, 0xFF, byte)]
_TOP = 2.0**-24


@inline(LANES_PAIR_4.kind, LANES_PAIR_4.kind, Int, Int)
def _add_float(k, sums, block, x):
    """Add the products of one block: its codes become the top bytes of words, 2^24 times their values.

    So sums of inputs beyond about 2^97 overflow, where other tiers go to 2^121.
    """
    parts = [k.zero(F32x4)] * 2
    for register in range(2):
        codes = k.load(I8x16, block + (2 + 16 * register))
        for word in range(4):
            places = _TOP_BYTES[16 * word : 16 * word + 16]
            values = look_up(k, codes, k.const(I8x16, places)).bits(I32x4).to_float(F32x4)
            inputs = k.load(F32x4, x + (64 * register + 16 * word))
            parts[word % 2] = k.fma(values, inputs, parts[word % 2])
    d = (k.half_to_float(k.load(types.int16, block)) * _TOP).splat(F32x4)
    even, odd = (k.fma(part, d, total) for part, total in zip(parts, k.members(sums), strict=True))
    return even, odd


FLOAT = RowKernel(pack_floats, make_rows(LANES_PAIR_4, 1, Part(32, _add_float, BLOCK, 128)), records(1, 4))
