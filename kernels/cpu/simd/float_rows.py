"""Rows times float32 activations: weights decoded to floats in registers, nothing rounded but the sums.

One portable source for every tier, 32 floats a vector (LLVM splits it to what the target has). The packed buffer holds
the inputs as they are; for Q4_K and Q2_K every 256 of them are followed by their sums of 16, for the terms with mins.
"""

from __future__ import annotations

from numba import njit, types

from .helpers import (
    AHEAD,
    add32,
    broadcast_half,
    copy_32,
    pack_floats,
    prefetch,
    q4_k_scales,
    store_float,
    sum32,
    zero32,
)
from .iq2_xxs import decode_group
from .row_kernel import LANES_32, Part, RowKernel, make_rows, records
from .vec import (
    JIT,
    F32x8,
    F32x16,
    F32x32,
    Float,
    I8x16,
    I8x32,
    I16x32,
    I32x8,
    I32x16,
    I32x32,
    Int,
    Val,
    inline,
)  # fmt: skip


# -- plain numbers: F32, F16, BF16
def _decode_f32(k, address: Val, kind: types.Type) -> Val:
    return k.load(kind, address)


def _decode_f16(k, address: Val, kind: types.Type) -> Val:
    return k.half_to_float(k.load(I16x32 if kind is F32x32 else types.int16, address))


def _decode_bf16(k, address: Val, kind: types.Type) -> Val:
    vector = kind is F32x32
    bits = k.load(I16x32 if vector else types.int16, address).zext(I32x32 if vector else types.int32)
    return (bits << 16).bits(kind)


def _plain(decode, size: int) -> RowKernel:
    """The kernel for plain numbers of ``size`` bytes; ``decode(k, address, kind)`` gives 32 floats or one."""

    @inline(F32x32, F32x32, Int, Int)
    def add_32(k, total, weights, x):
        return k.fma(decode(k, weights, F32x32), k.load(F32x32, x), total)

    @inline(Float, Float, Int, Int)
    def add_1(k, total, weights, x):
        return k.fma(decode(k, weights, Float), k.load(Float, x), total)

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, buffer, out):
        for row in range(first, last):
            w = weights + row * row_bytes
            x = buffer
            even = zero32()
            odd = zero32()
            for _ in range(n >> 6):
                for line in range(0, 64 * size, 64):
                    prefetch(w + AHEAD + line)
                even = add_32(even, w, x)
                odd = add_32(odd, w + 32 * size, x + 128)
                w += 64 * size
                x += 256
            if n & 32:
                even = add_32(even, w, x)
                w += 32 * size
                x += 128
            tail = sum32(add32(even, odd))
            for _ in range(n & 31):
                tail = add_1(tail, w, x)
                w += size
                x += 4
            store_float(out + 4 * row, tail)

    return RowKernel(pack_floats, rows, records(1, 4))


# -- blocks: a step adds one block of weights
_SUMS = 1024
_PACKED_SUMS = _SUMS + 64


@inline(F32x32, F32x32, Int, Int)
def _add_q8_0(k, total, weights, x):
    codes = k.load(I8x32, weights + 2).sext(I32x32).to_float(F32x32)
    return k.fma(codes * k.load(F32x32, x), broadcast_half(k, weights, F32x32), total)


@inline(F32x32, F32x32, Int, Int)
def _add_q4_0(k, total, weights, x):
    codes = k.load(I8x16, weights + 2)
    nibbles = (codes & 0x0F).cat(codes >> 4)
    values = (nibbles - 8).sext(I32x32).to_float(F32x32)
    return k.fma(values * k.load(F32x32, x), broadcast_half(k, weights, F32x32), total)


def power_of_two(k, address: Val, least: int, kind: types.Type) -> Val:
    """The E8M0 byte e at ``address`` as 2^(e - least) in every lane, ``least`` 127 or 128; with 127, 255 is NaN."""
    e = k.load(types.int8, address).zext(types.int32)
    if least == 127:
        bits = k.select(e.compare("==", 0), k.const(types.int32, 1 << 22), e << 23)
        bits = k.select(e.compare("==", 255), k.const(types.int32, 0x7FC00000), bits)
    else:
        bits = k.select(e.compare("<", 2), k.const(types.int32, 1 << 21) << e, (e - 1) << 23)
    return bits.bits(Float).splat(kind)


# The small floats become binary16 by moving their bits into its fields: that shifts the exponent's bias, which one
# multiplication puts right, and a conversion takes subnormal ones at full speed.
@inline(F32x32, F32x32, Int, Int)
def _add_mxfp4(k, total, weights, x):
    codes = k.load(I8x16, weights + 1)
    nibbles = (codes & 0x0F).cat(codes >> 4).zext(I16x32)
    values = k.half_to_float(((nibbles << 9) & 0x0E00) | ((nibbles & 8) << 12))
    part = values * k.load(F32x32, x) * 2.0**15
    return k.fma(part, power_of_two(k, weights, 128, F32x32), total)


@inline(F32x32, F32x32, Int, Int)
def _add_f8_e4m3(k, total, weights, x):
    part = k.zero(F32x32)
    for group in range(4):
        codes = k.load(I8x32, weights + 1 + 32 * group).sext(I16x32)
        halves = (codes << 7) & -0x4001
        nan = (codes & 0x7F).compare("==", 0x7F)
        values = k.half_to_float(k.select(nan, k.const(I16x32, 0x7E00), halves))
        part = k.fma(values, k.load(F32x32, x + 128 * group), part)
    return k.fma(part * 2.0**8, power_of_two(k, weights, 127, F32x32), total)


@inline(F32x32, F32x32, Int, Int)
def _add_iq2_xxs(k, total, weights, x):
    part = k.zero(F32x32)
    for group in range(8):
        magnitudes, masks, scale = decode_group(k, weights + 2 + 8 * group)
        values = ((magnitudes ^ masks) - masks).sext(I32x32).to_float(F32x32)
        scaled = k.load(F32x32, x + 128 * group) * scale.to_float(Float).splat(F32x32)
        part = k.fma(values, scaled, part)
    return k.fma(part, broadcast_half(k, weights, F32x32) * 0.125, total)


@inline(F32x32, F32x32, Int, Int)
def _add_q4_k(k, total, weights, x):
    scale_bytes, min_bytes = q4_k_scales(k, weights)
    scales = scale_bytes.zext(I32x8).to_float(F32x8)
    part = k.zero(F32x32)
    for pair in range(4):
        codes = k.load(I8x32, weights + 16 + 32 * pair)
        for nibble, plane in enumerate((codes & 0x0F, (codes >> 4) & 0x0F)):
            sub_block = 2 * pair + nibble
            scaled = k.load(F32x32, x + 128 * sub_block) * scales.shuffle([sub_block] * 32)
            part = k.fma(plane.zext(I32x32).to_float(F32x32), scaled, part)
    total = k.fma(part, broadcast_half(k, weights, F32x32), total)
    pairs = k.load(F32x16, x + _SUMS)
    sums_of_32 = pairs.shuffle(range(0, 16, 2)) + pairs.shuffle(range(1, 16, 2))
    mins = min_bytes.zext(I32x8).to_float(F32x8) * sums_of_32 * broadcast_half(k, weights + 2, F32x8)
    return total - mins.cat(k.zero(F32x8)).cat(k.zero(F32x16))


@inline(F32x32, F32x32, Int, Int)
def _add_q2_k(k, total, weights, x):
    header = k.load(I8x16, weights)
    scales = (header & 0x0F).zext(I32x16).to_float(F32x16)
    part = k.zero(F32x32)
    for half in range(2):
        codes = k.load(I8x32, weights + 16 + 32 * half)
        for plane in range(4):
            group = 8 * half + 2 * plane
            scaled = k.load(F32x32, x + 64 * group) * scales.shuffle([group] * 16 + [group + 1] * 16)
            part = k.fma(((codes >> (2 * plane)) & 3).zext(I32x32).to_float(F32x32), scaled, part)
    total = k.fma(part, broadcast_half(k, weights + 80, F32x32), total)
    mins = (header >> 4).zext(I32x16).to_float(F32x16) * k.load(F32x16, x + _SUMS)
    return total - (mins * broadcast_half(k, weights + 82, F32x16)).cat(k.zero(F32x16))


@inline(F32x32, F32x32, Int, Int)
def _add_q6_k(k, total, weights, x):
    """210 bytes: 128 low nibbles, 64 high pairs, 16 int8 scales, f16 d; w = d * s * (code - 32)."""
    scales = k.load(I8x16, weights + 192).sext(I32x16).to_float(F32x16)
    part = k.zero(F32x32)
    for half in range(2):
        high = k.load(I8x32, weights + 128 + 32 * half)
        for plane in range(4):
            low = k.load(I8x32, weights + 64 * half + 32 * (plane & 1)) >> (4 * (plane >> 1))
            codes = (low & 0x0F) | (((high >> (2 * plane)) & 3) << 4)
            group = 8 * half + 2 * plane
            scaled = k.load(F32x32, x + 64 * group) * scales.shuffle([group] * 16 + [group + 1] * 16)
            part = k.fma((codes - 32).sext(I32x32).to_float(F32x32), scaled, part)
    return k.fma(part, broadcast_half(k, weights + 208, F32x32), total)


@inline(types.none, Int, Int)
def _store_sum_16(k, target, x):
    k.store(target, k.hsum(k.load(F32x16, x)))


@njit(**JIT)
def _pack_sums(x, n, buffer):
    for _ in range(n // 256):
        for i in range(8):
            copy_32(buffer + 128 * i, x + 128 * i)
        for i in range(16):
            _store_sum_16(buffer + _SUMS + 4 * i, x + 64 * i)
        buffer += _PACKED_SUMS
        x += 1024


def _blocks(add, inputs: int, block_bytes: int) -> RowKernel:
    rows = make_rows(LANES_32, -(-block_bytes // 64), Part(inputs, add, block_bytes, 4 * inputs))
    return RowKernel(pack_floats, rows, records(1, 4))


def _blocks_with_sums(add, block_bytes: int) -> RowKernel:
    rows = make_rows(LANES_32, -(-block_bytes // 64), Part(256, add, block_bytes, _PACKED_SUMS))
    return RowKernel(_pack_sums, rows, records(256, _PACKED_SUMS))


FLOAT = {
    "F32": _plain(_decode_f32, 4),
    "F16": _plain(_decode_f16, 2),
    "BF16": _plain(_decode_bf16, 2),
    "Q8_0": _blocks(_add_q8_0, 32, 34),
    "Q4_0": _blocks(_add_q4_0, 32, 18),
    "Q4_K": _blocks_with_sums(_add_q4_k, 144),
    "Q2_K": _blocks_with_sums(_add_q2_k, 84),
    "Q6_K": _blocks(_add_q6_k, 256, 210),
    "IQ2_XXS": _blocks(_add_iq2_xxs, 256, 66),
    "MXFP4": _blocks(_add_mxfp4, 32, 17),
    "F8_E4M3": _blocks(_add_f8_e4m3, 128, 129),
}
