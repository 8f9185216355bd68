"""Rows times float32 activations: weights decoded to floats in registers; only the sums round.

One portable source for every tier, 32 floats a vector (LLVM splits it to what the target has). The packed buffer holds
the inputs unchanged; for formats with minima every 256 of them are followed by their sums of 16.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ...formats import Format
from ...formats.apart import Apart
from .decode import SubScales, block_minimum, block_scale, code_floats, group_lanes, number_floats, rest
from .helpers import add32, copy_32, load_int, pack_floats, prefetch_lines, sum32, zero32
from .row_kernel import LANES_32, Inputs, Part, RowKernel, for_counts, make_rows, records, several_adds
from .vec import JIT, Emit, F32x8, F32x16, F32x32, Float, I16x32, I32x32, Int, Val, inline, several


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
    """Make the kernel for plain numbers of ``size`` bytes; ``decode(k, address, kind)`` gives 32 floats or one."""

    @inline(F32x32, F32x32, Int, Int)
    def add_32(k, total, weights, x):
        return k.fma(decode(k, weights, F32x32), k.load(F32x32, x), total)

    @inline(Float, Float, Int, Int)
    def add_1(k, total, weights, x):
        return k.fma(decode(k, weights, Float), k.load(Float, x), total)

    def make(count: int, inputs: Inputs) -> Any:
        buffers, outs, forward, store = inputs
        zero, add, total = several(zero32, count), several_adds(add_32, count), several(sum32, count)
        join, add_last = several(add32, count), several_adds(add_1, count)
        fetch_ahead = prefetch_lines(size)

        @njit(**JIT)
        def rows(weights, first, last, row_bytes, n, table):
            start, out = buffers(table), outs(table)
            for row in range(first, last):
                w = weights + row * row_bytes
                x = start
                even = zero()
                odd = zero()
                for _ in range(n >> 6):
                    fetch_ahead(w)
                    even = add(even, w, x)
                    odd = add(odd, w + 32 * size, forward(x, 128))
                    w += 64 * size
                    x = forward(x, 256)
                if n & 32:
                    even = add(even, w, x)
                    w += 32 * size
                    x = forward(x, 128)
                tail = total(join(even, odd))
                for _ in range(n & 31):
                    tail = add_last(tail, w, x)
                    w += size
                    x = forward(x, 4)
                store(forward(out, 4 * row), tail)

        return rows

    return RowKernel(pack_floats, for_counts(make), records(1, 4))


# -- blocks: a step adds one block of weights
_SUMS = 1024
_PACKED_SUMS = _SUMS + 64


def _block_step(fmt: Format) -> Any:
    """Make an inlined function that adds the products of one block to 32 running sums."""

    @inline(F32x32, F32x32, Int, Int)
    def add(k, total, weights, x):
        return _add_block(k, fmt, total, weights, weights, x)

    return add


def _add_block(k: Emit, fmt: Format, total: Val, weights: Val, scale: Val, x: Val) -> Val:
    """Return total + the products of one block; ``scale`` is the address that the place of its scale counts from."""
    scales = None if fmt.scales is None else SubScales(k, fmt, weights, "f32")
    part = k.zero(F32x32)
    for run in range(fmt.block_elems // 32):
        values = code_floats(k, fmt, weights, 32 * run, 32)
        inputs = k.load(F32x32, x + 128 * run)
        if scales is not None:
            inputs = inputs * scales.lanes(group_lanes(fmt, 32 * run, 32))
        part = k.fma(values, inputs, part)
    part = part if rest(fmt) == 1 else part * rest(fmt)
    total = k.fma(part, block_scale(k, fmt, scale, F32x32), total)
    return total if fmt.minima is None else total - _minima(k, fmt, weights, x + _SUMS)


def _offset_step(fmt: Format) -> Any:
    """``_block_step`` of a format with one minimum a block: multiply the weights themselves."""

    @inline(F32x32, F32x32, Int, Int)
    def add(k, total, weights, x):
        codes = code_floats(k, fmt, weights, 0, 32)
        low = block_minimum(k, fmt, weights, F32x32)
        return k.fma(codes * block_scale(k, fmt, weights, F32x32) - low, k.load(F32x32, x), total)

    return add


def _minima(k: Emit, fmt: Format, weights: Val, sums: Val) -> Val:
    """Return dmin * m_g * (sum of the inputs of group g) in the first lanes of an F32x32; ``sums`` of 16 inputs
    each."""
    totals = k.load(F32x16, sums)
    if fmt.group == 32:
        totals = totals.shuffle(range(0, 16, 2)) + totals.shuffle(range(1, 16, 2))
    kind = F32x16 if fmt.group == 16 else F32x8
    minima = number_floats(k, fmt.minima, weights) * totals
    minima = minima * block_minimum(k, fmt, weights, kind)
    return (minima if kind is F32x16 else minima.cat(k.zero(F32x8))).cat(k.zero(F32x16))


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


def block_kernel(fmt: Format) -> RowKernel:
    """Generate the kernel of a block format from its declaration."""
    lines, offset = -(-fmt.block_bytes // 64), fmt.minimum is not None and fmt.minima is None
    add = _offset_step(fmt) if offset else _block_step(fmt)
    if fmt.minima is None:
        rows = make_rows(LANES_32, lines, Part(fmt.block_elems, add, fmt.block_bytes, 4 * fmt.block_elems))
        return RowKernel(pack_floats, rows, records(1, 4))
    rows = make_rows(LANES_32, lines, Part(256, add, fmt.block_bytes, _PACKED_SUMS))
    return RowKernel(_pack_sums, rows, records(256, _PACKED_SUMS))


def apart_kernel(layout: Apart) -> RowKernel:
    """Generate the kernel of a layout whose codes and scales lie apart; ``weights`` is the address of two addresses."""
    fmt, high = layout.codes, layout.high
    block, size, lines = fmt.block_elems, fmt.block_bytes, -(-fmt.block_bytes // 64)

    @inline(F32x32, F32x32, Int, Int, Int)
    def add(k, total, codes, scale, x):
        return _add_block(k, fmt, total, codes, scale, x)

    def make(count: int, inputs: Inputs) -> Any:
        buffers, outs, forward, store = inputs
        zero, add_all, total = several(zero32, count), several_adds(add, count), several(sum32, count)
        fetch_ahead = prefetch_lines(lines)

        @njit(**JIT)
        def rows(weights, first, last, row_bytes, n, table):
            start, out, blocks = buffers(table), outs(table), n // block
            for row in range(first, last):
                codes = load_int(weights) + row * row_bytes
                scale = load_int(weights + 8) + row // high * blocks
                x = start
                sums = zero()
                for _ in range(blocks):
                    fetch_ahead(codes)
                    sums = add_all(sums, codes, scale, x)
                    codes += size
                    scale += 1
                    x = forward(x, 4 * block)
                store(forward(out, 4 * row), total(sums))

        return rows

    return RowKernel(pack_floats, for_counts(make), records(1, 4))


PLAIN = {"F32": _plain(_decode_f32, 4), "F16": _plain(_decode_f16, 2), "BF16": _plain(_decode_bf16, 2)}
