"""Rows times float32 activations: weights decoded to floats in registers, nothing rounded but the sums.

One portable source for every tier, 32 floats a vector (LLVM splits it to what the target has). The packed buffer holds
the inputs as they are; for Q4_K and Q2_K the sums of x per sub-block follow, for the terms with the mins.
"""

from __future__ import annotations

from numba import njit, types

from .iq2_xxs import decode_group
from .ops import (  # fmt: skip
    AHEAD,
    add32,
    broadcast_half,
    copy_32,
    load_float,
    prefetch,
    q4_k_scales,
    store_float,
    sum32,
    zero32,
)
from .row_kernel import RowKernel
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
    step,
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

    @step(F32x32, F32x32, Int, Int)
    def add_32(k, total, weights, x):
        return k.fma(decode(k, weights, F32x32), k.load(F32x32, x), total)

    @step(Float, Float, Int, Int)
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

    return RowKernel(_pack_plain, rows, _packed_bytes_plain)


@njit(**JIT)
def _pack_plain(x, n, buffer):
    for _ in range(n >> 5):
        copy_32(buffer, x)
        buffer += 128
        x += 128
    for i in range(n & 31):
        store_float(buffer + 4 * i, load_float(x + 4 * i))


@njit(**JIT)
def _packed_bytes_plain(n):
    return 4 * n


# -- blocks: a step adds one block of weights
def _block_rows(add_block, weights_per_block, block_bytes):
    """The rows function for a block format; ``add_block(total, weights, x, sums)``."""
    sums_per_block = weights_per_block // 16 * 4

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, buffer, out):
        for row in range(first, last):
            w = weights + row * row_bytes
            x = buffer
            sums = buffer + 4 * n
            total = zero32()
            for _ in range(n // weights_per_block):
                for line in range(0, block_bytes, 64):
                    prefetch(w + AHEAD + line)
                total = add_block(total, w, x, sums)
                w += block_bytes
                x += 4 * weights_per_block
                sums += sums_per_block
            store_float(out + 4 * row, sum32(total))

    return rows


@step(F32x32, F32x32, Int, Int, Int)
def _add_q8_0(k, total, weights, x, sums):
    codes = k.load(I8x32, weights + 2).sext(I32x32).to_float(F32x32)
    return k.fma(codes * k.load(F32x32, x), broadcast_half(k, weights, F32x32), total)


@step(F32x32, F32x32, Int, Int, Int)
def _add_q4_0(k, total, weights, x, sums):
    codes = k.load(I8x16, weights + 2)
    nibbles = (codes & 0x0F).cat(codes >> 4)
    values = (nibbles - 8).sext(I32x32).to_float(F32x32)
    return k.fma(values * k.load(F32x32, x), broadcast_half(k, weights, F32x32), total)


@step(F32x32, F32x32, Int, Int, Int)
def _add_iq2_xxs(k, total, weights, x, sums):
    part = k.zero(F32x32)
    for group in range(8):
        magnitudes, masks, scale = decode_group(k, weights + 2 + 8 * group)
        values = ((magnitudes ^ masks) - masks).sext(I32x32).to_float(F32x32)
        scaled = k.load(F32x32, x + 128 * group) * scale.to_float(Float).splat(F32x32)
        part = k.fma(values, scaled, part)
    return k.fma(part, broadcast_half(k, weights, F32x32) * 0.125, total)


@step(F32x32, F32x32, Int, Int, Int)
def _add_q4_k(k, total, weights, x, sums):
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
    pairs = k.load(F32x16, sums)
    sums_of_32 = pairs.shuffle(range(0, 16, 2)) + pairs.shuffle(range(1, 16, 2))
    mins = min_bytes.zext(I32x8).to_float(F32x8) * sums_of_32 * broadcast_half(k, weights + 2, F32x8)
    return total - mins.cat(k.zero(F32x8)).cat(k.zero(F32x16))


@step(F32x32, F32x32, Int, Int, Int)
def _add_q2_k(k, total, weights, x, sums):
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
    mins = (header >> 4).zext(I32x16).to_float(F32x16) * k.load(F32x16, sums)
    return total - (mins * broadcast_half(k, weights + 82, F32x16)).cat(k.zero(F32x16))


@step(F32x32, F32x32, Int, Int, Int)
def _add_q6_k(k, total, weights, x, sums):
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


@step(types.none, Int, Int)
def _store_sum_16(k, target, x):
    k.store(target, k.hsum(k.load(F32x16, x)))


@njit(**JIT)
def _pack_sums(x, n, buffer):
    _pack_plain(x, n, buffer)
    for i in range(n // 16):
        _store_sum_16(buffer + 4 * n + 4 * i, x + 64 * i)


@njit(**JIT)
def _packed_bytes_sums(n):
    return 4 * n + n // 4


FLOAT = {
    "F32": _plain(_decode_f32, 4),
    "F16": _plain(_decode_f16, 2),
    "BF16": _plain(_decode_bf16, 2),
    "Q8_0": RowKernel(_pack_plain, _block_rows(_add_q8_0, 32, 34), _packed_bytes_plain),
    "Q4_0": RowKernel(_pack_plain, _block_rows(_add_q4_0, 32, 18), _packed_bytes_plain),
    "Q4_K": RowKernel(_pack_sums, _block_rows(_add_q4_k, 256, 144), _packed_bytes_sums),
    "Q2_K": RowKernel(_pack_sums, _block_rows(_add_q2_k, 256, 84), _packed_bytes_sums),
    "Q6_K": RowKernel(_pack_plain, _block_rows(_add_q6_k, 256, 210), _packed_bytes_plain),
    "IQ2_XXS": RowKernel(_pack_plain, _block_rows(_add_iq2_xxs, 256, 66), _packed_bytes_plain),
}
