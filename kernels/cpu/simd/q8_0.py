"""Q8_0 rows times A8 activations: blocks of 32, f16 scale and 32 int8 (engine.md 2.1, 2.2).

Tier A takes two blocks (64 weights) a step. ``vpdpbusd`` wants unsigned weights: w ^ 0x80 = w + 128, and starting each
int32 lane at -128 * (sum of its four codes) takes the offset out exactly. One 64-byte load covers both f16 scales.
Packed buffer, per 64 inputs: 64 codes | 16 f32 (two block scales, 8 lanes each) | 16 i32 lane offsets.

Tiers B and C take one block a step. Packed buffer: n codes | n/32 f32 scales.
"""

from __future__ import annotations

from numba import njit, types

from . import x86
from .ops import AHEAD, add16, broadcast_half, copy_32, prefetch, signed_dots, store_float, sum8, sum16, zero8, zero16
from .quantize import a8_scale, quantize_a8, store_codes
from .row_kernel import RowKernel
from .tiers import TIER
from .vec import JIT, F32x8, F32x16, Float, I8x16, I8x32, I8x64, I16x32, I32x8, I32x16, Int, Val, step

BLOCK = 34
_PACKED_PAIR = 192


# -- tier A
@step(F32x16, F32x16, Int, Int)
def _add_pair(k, total, weights, x):
    """total + the lane sums of two adjacent blocks."""
    codes = k.load(I8x32, weights + 2).cat(k.load(I8x32, weights + BLOCK + 2)) ^ -128
    dots = x86.dpbusd_512(k, k.load(I32x16, x + 128), codes, k.load(I8x64, x))
    halves = k.load(I16x32, weights).shuffle([0] * 8 + [BLOCK // 2] * 8)
    return k.fma(dots.to_float(F32x16), k.half_to_float(halves) * k.load(F32x16, x + 64), total)


@step(F32x16, F32x16, Int, Int)
def _add_last(k, total, weights, x):
    """As ``_add_pair`` for a final single block: reads 34 bytes; the second half of ``x`` is packed as zeros."""
    codes = k.load(I8x32, weights + 2).cat(k.zero(I8x32)) ^ -128
    dots = x86.dpbusd_512(k, k.load(I32x16, x + 128), codes, k.load(I8x64, x))
    scale = broadcast_half(k, weights, F32x8).cat(k.zero(F32x8))
    return k.fma(dots.to_float(F32x16), scale * k.load(F32x16, x + 64), total)


@step(types.none, Int, Int, Float)
def _finish_pack(k, target, half, scale):
    """Scale and offset lanes of one block; ``half`` (0 or 1) is its place in the pair at ``target``."""
    at = target + half * 32
    codes = k.load(I8x32, at)
    wide = codes.sext(I16x32)
    pairs = wide.shuffle(range(0, 32, 2)) + wide.shuffle(range(1, 32, 2))
    quads = pairs.shuffle(range(0, 16, 2)) + pairs.shuffle(range(1, 16, 2))
    k.store(at + 64, scale.splat(F32x8))
    k.store(at + 128, quads.sext(I32x8) * -128)


@step(types.none, Int)
def _clear_half(k, target):
    """Zero the second block of the pair at ``target``."""
    for offset in (32, 96, 160):
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


@njit(**JIT)
def _rows_a(weights, first, last, row_bytes, n, buffer, out):
    for row in range(first, last):
        w = weights + row * row_bytes
        x = buffer
        even = zero16()
        odd = zero16()
        for _ in range(n >> 7):
            prefetch(w + AHEAD)
            prefetch(w + AHEAD + 64)
            even = _add_pair(even, w, x)
            odd = _add_pair(odd, w + 2 * BLOCK, x + _PACKED_PAIR)
            w += 4 * BLOCK
            x += 2 * _PACKED_PAIR
        if n & 64:
            even = _add_pair(even, w, x)
            w += 2 * BLOCK
            x += _PACKED_PAIR
        if n & 32:
            odd = _add_last(odd, w, x)
        store_float(out + 4 * row, sum16(add16(even, odd)))


@njit(**JIT)
def _packed_bytes_a(n):
    return (n + 63) // 64 * _PACKED_PAIR


# -- tier A, float activations
def _products(k, weights: Val, x: Val) -> Val:
    """The 32 products code * x of a block, added to 16 lanes."""
    low, high = (k.load(I8x16, weights + at).sext(I32x16).to_float(F32x16) for at in (2, 18))
    return k.fma(high, k.load(F32x16, x + 64), low * k.load(F32x16, x))


@step(F32x16, F32x16, Int, Int)
def _add_pair_float(k, total, weights, x):
    """total + the lane sums of two adjacent blocks, eight lanes each."""
    first, second = _products(k, weights, x), _products(k, weights + BLOCK, x + 128)
    low, high = list(range(8)) + list(range(16, 24)), list(range(8, 16)) + list(range(24, 32))
    halves = k.load(I16x32, weights).shuffle([0] * 8 + [BLOCK // 2] * 8)
    return k.fma(first.shuffle(low, second) + first.shuffle(high, second), k.half_to_float(halves), total)


@step(F32x16, F32x16, Int, Int)
def _add_last_float(k, total, weights, x):
    return k.fma(_products(k, weights, x), broadcast_half(k, weights, F32x16), total)


@njit(**JIT)
def _pack_float(x, n, buffer):
    for i in range(n // 32):
        copy_32(buffer + 128 * i, x + 128 * i)


@njit(**JIT)
def _rows_float(weights, first, last, row_bytes, n, buffer, out):
    for row in range(first, last):
        w = weights + row * row_bytes
        x = buffer
        even = zero16()
        odd = zero16()
        for _ in range(n >> 7):
            prefetch(w + AHEAD)
            prefetch(w + AHEAD + 64)
            even = _add_pair_float(even, w, x)
            odd = _add_pair_float(odd, w + 2 * BLOCK, x + 256)
            w += 4 * BLOCK
            x += 512
        if n & 64:
            even = _add_pair_float(even, w, x)
            w += 2 * BLOCK
            x += 256
        if n & 32:
            odd = _add_last_float(odd, w, x)
        store_float(out + 4 * row, sum16(add16(even, odd)))


@njit(**JIT)
def _packed_bytes_float(n):
    return 4 * n


FLOAT = RowKernel(_pack_float, _rows_float, _packed_bytes_float)


# -- tiers B and C
@step(F32x8, F32x8, Int, Int, Int)
def _add_block(k, total, weights, codes, scale):
    """total + the lane sums of one block."""
    dots = signed_dots(k, k.load(I8x32, weights + 2), k.load(I8x32, codes))
    factor = broadcast_half(k, weights, F32x8) * k.load(Float, scale).splat(F32x8)
    return k.fma(dots.to_float(F32x8), factor, total)


@njit(**JIT)
def _pack_bc(x, n, buffer):
    quantize_a8(x, n, buffer, buffer + n)


@njit(**JIT)
def _rows_bc(weights, first, last, row_bytes, n, buffer, out):
    for row in range(first, last):
        w = weights + row * row_bytes
        x = buffer
        scale = buffer + n
        total = zero8()
        for _ in range(n >> 6):
            prefetch(w + AHEAD)
            total = _add_block(total, w, x, scale)
            total = _add_block(total, w + BLOCK, x + 32, scale + 4)
            w += 2 * BLOCK
            x += 64
            scale += 8
        if n & 32:
            total = _add_block(total, w, x, scale)
        store_float(out + 4 * row, sum8(total))


@njit(**JIT)
def _packed_bytes_bc(n):
    return n + n // 8


A8 = RowKernel(_pack_a, _rows_a, _packed_bytes_a) if TIER == "A" else RowKernel(_pack_bc, _rows_bc, _packed_bytes_bc)
