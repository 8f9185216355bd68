"""Row kernel of Q8_0 in tier A for inputs rounded to A8: blocks of an f16 scale and 32 int8 (docs/explanation/model.md
2.3, 10.2). ``blocks_32`` has the one for floats.

A step processes two blocks (64 weights). ``vpdpbusd`` needs one unsigned factor: the inputs are packed as x ^ 0x80 =
x + 128, and starting each int32 lane at -128 * (sum of its four weights) cancels the offset exactly. The inputs of
several rows share that start, and are read from two cache lines a step. One 64-byte load covers both f16 scales.

Packed buffer, per 64 inputs: 64 codes + 128 | 16 f32 (two block scales, 8 lanes each).
"""

from __future__ import annotations

from numba import njit, types

from ...formats import FORMATS
from . import x86
from .helpers import broadcast_half
from .quantize import a8_scale, store_codes
from .row_kernel import EVERY_COUNT, PAIR_16, Part, RowKernel, make_rows, records
from .vec import JIT, F32x8, F32x16, Float, I8x32, I8x64, I16x32, I32x8, I32x16, Int, Val, inline

BLOCK = FORMATS["Q8_0"].block_bytes
_PACKED_PAIR = 128


# -- a8
def _start(k, codes: Val) -> Val:
    """Return -128 * (sum of the four codes of each int32 lane)."""
    return k.zero(I32x16) - x86.dpbusd_512(k, k.zero(I32x16), k.const(I8x64, -128), codes)


def _two_blocks(k, total: Val, weights: Val, x: Val) -> Val:
    """Return total + the lane sums of two adjacent blocks."""
    codes = k.load(I8x32, weights + 2).cat(k.load(I8x32, weights + BLOCK + 2))
    dots = x86.dpbusd_512(k, _start(k, codes), k.load(I8x64, x), codes)
    halves = k.load(I16x32, weights).shuffle([0] * 8 + [BLOCK // 2] * 8)
    return k.fma(dots.to_float(F32x16), k.half_to_float(halves) * k.load(F32x16, x + 64), total)


def _last_block(k, total: Val, weights: Val, x: Val) -> Val:
    """Return the same for a final single block: reads 34 bytes; the second half of ``x`` is packed as zeros."""
    codes = k.load(I8x32, weights + 2).cat(k.zero(I8x32))
    dots = x86.dpbusd_512(k, _start(k, codes), k.load(I8x64, x), codes)
    scale = broadcast_half(k, weights, F32x8).cat(k.zero(F32x8))
    return k.fma(dots.to_float(F32x16), scale * k.load(F32x16, x + 64), total)


@inline(types.none, Int, Int, Float)
def _finish_pack(k, target, half, scale):
    """Offset the codes of one block and store its scale lanes; ``half`` (0 or 1) is its place in the pair at
    ``target``."""
    at = target + half * 32
    k.store(at, k.load(I8x32, at) ^ -128)
    k.store(at + 64, scale.splat(F32x8))


@inline(types.none, Int)
def _clear_half(k, target):
    """Zero the second block of the pair at ``target``."""
    for offset in (32, 96):
        k.store(target + offset, k.zero(I32x8))


@njit(**JIT)
def _pack_a(x, n, buffer):
    for block in range(n // 32):
        target = buffer + (block >> 1) * _PACKED_PAIR
        source = x + 128 * block
        scale, inverse = a8_scale(source)
        store_codes(target + 32 * (block & 1), source, inverse)
        _finish_pack(target, block & 1, scale)
    if n & 32:
        _clear_half(buffer + (n >> 6) * _PACKED_PAIR)


@inline(PAIR_16.kind, PAIR_16.kind, Int, Int)
def _add_four(k, sums, weights, x):
    even, odd = k.members(sums)
    even = _two_blocks(k, even, weights, x)
    return even, _two_blocks(k, odd, weights + 2 * BLOCK, x + _PACKED_PAIR)


@inline(PAIR_16.kind, PAIR_16.kind, Int, Int)
def _add_two(k, sums, weights, x):
    even, odd = k.members(sums)
    return _two_blocks(k, even, weights, x), odd


@inline(PAIR_16.kind, PAIR_16.kind, Int, Int)
def _add_one(k, sums, weights, x):
    even, odd = k.members(sums)
    return even, _last_block(k, odd, weights, x)


_ROWS = make_rows(
    PAIR_16,
    2,
    Part(128, _add_four, 4 * BLOCK, 2 * _PACKED_PAIR),
    Part(64, _add_two, 2 * BLOCK, _PACKED_PAIR),
    Part(32, _add_one, BLOCK, 0),
    counts=EVERY_COUNT,
)
A8 = RowKernel(_pack_a, _ROWS, records(64, _PACKED_PAIR))
