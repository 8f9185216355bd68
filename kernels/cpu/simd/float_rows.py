"""Row kernels for float32 inputs: weights are decoded to floats in registers, and only the sums are rounded.

The source is the same for every tier, with vectors of 32 floats, 16 in tier N (LLVM divides them into what the
processor has). The packed buffer holds the inputs unchanged; for formats with minima, each 256 inputs are followed by
the sums of every 16 of them.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ...formats import Format
from ...formats.apart import Apart
from .decode import SubScales, block_minimum, block_scale, code_floats, group_lanes, number_floats, rest
from .helpers import copy_32, pack_floats
from .row_kernel import (
    COUNTS,
    LANES_16,
    LANES_32,
    PAIR_16,
    PAIR_32,
    TWO_AT_MOST,
    Part,
    RowKernel,
    make_rows,
    records,
)
from .tiers import NEON_TIER, TIER
from .vec import JIT, Emit, F32x8, F32x16, Float, Int, Val, Vec, inline

# With sums of 32 lanes, two inputs would not fit into 32 registers of 128 bits.
_LANES = 16 if NEON_TIER else 32
_SUMS_KIND, _PAIR = (LANES_16, PAIR_16) if NEON_TIER else (LANES_32, PAIR_32)
_FLOATS, _COUNTS = Vec("f32", _LANES), TWO_AT_MOST if NEON_TIER else COUNTS


# -- plain numbers: F32, F16, BF16
def _decode_f32(k, address: Val, kind: types.Type) -> Val:
    return k.load(kind, address)


def _decode_f16(k, address: Val, kind: types.Type) -> Val:
    return k.half_to_float(k.load(Vec("i16", _LANES) if kind is _FLOATS else types.int16, address))


def _decode_bf16(k, address: Val, kind: types.Type) -> Val:
    short, whole = (Vec("i16", _LANES), Vec("i32", _LANES)) if kind is _FLOATS else (types.int16, types.int32)
    return (k.load(short, address).zext(whole) << 16).bits(kind)


def _plain(decode, size: int) -> RowKernel:
    """Make the kernel for plain numbers of ``size`` bytes; ``decode(k, address, kind)`` gives a vector or one."""

    def add_vector(k, total, weights, x):
        return k.fma(decode(k, weights, _FLOATS), k.load(_FLOATS, x), total)

    @inline(_PAIR.kind, _PAIR.kind, Int, Int)
    def add_two(k, sums, weights, x):
        even, odd = k.members(sums)
        return add_vector(k, even, weights, x), add_vector(k, odd, weights + _LANES * size, x + 4 * _LANES)

    @inline(_PAIR.kind, _PAIR.kind, Int, Int)
    def add_one(k, sums, weights, x):
        even, odd = k.members(sums)
        return add_vector(k, even, weights, x), odd

    @inline(Float, Float, Int, Int)
    def add_single(k, total, weights, x):
        return k.fma(decode(k, weights, Float), k.load(Float, x), total)

    rows = make_rows(
        _PAIR,
        size * _LANES // 32,
        Part(2 * _LANES, add_two, 2 * _LANES * size, 8 * _LANES),
        Part(_LANES, add_one, _LANES * size, 4 * _LANES),
        single=Part(1, add_single, size, 4),
        counts=_COUNTS,
    )
    return RowKernel(pack_floats, rows, records(1, 4))


# -- blocks: a step adds one block of weights
_SUMS = 1024
_PACKED_SUMS = _SUMS + 64


def _block_step(fmt: Format) -> Any:
    """Make an inlined function that adds the products of one block to the running sums."""

    @inline(_FLOATS, _FLOATS, Int, Int)
    def add(k, total, weights, x):
        return _add_block(k, fmt, total, weights, weights, x)

    return add


def _add_block(k: Emit, fmt: Format, total: Val, weights: Val, scale: Val, x: Val) -> Val:
    """Return total + the products of one block; ``scale`` is the address that the place of its scale counts from."""
    scales = None if fmt.scales is None else SubScales(k, fmt, weights, "f32")
    part = k.zero(_FLOATS)
    for first in range(0, fmt.block_elems, _LANES):
        values = code_floats(k, fmt, weights, first, _LANES)
        inputs = k.load(_FLOATS, x + 4 * first)
        if scales is not None:
            inputs = inputs * scales.lanes(group_lanes(fmt, first, _LANES))
        part = k.fma(values, inputs, part)
    part = part if rest(fmt) == 1 else part * rest(fmt)
    total = k.fma(part, block_scale(k, fmt, scale, _FLOATS), total)
    return total if fmt.minima is None else total - _minima(k, fmt, weights, x + _SUMS)


def _offset_step(fmt: Format) -> Any:
    """``_block_step`` of a format with one minimum a block: multiply the weights themselves."""

    @inline(_FLOATS, _FLOATS, Int, Int)
    def add(k, total, weights, x):
        for first in range(0, 32, _LANES):
            codes = code_floats(k, fmt, weights, first, _LANES)
            low = block_minimum(k, fmt, weights, _FLOATS)
            total = k.fma(codes * block_scale(k, fmt, weights, _FLOATS) - low, k.load(_FLOATS, x + 4 * first), total)
        return total

    return add


def _minima(k: Emit, fmt: Format, weights: Val, sums: Val) -> Val:
    """Return dmin * m_g * (sum of the inputs of group g) in the first lanes of the sums; ``sums`` of 16 inputs
    each."""
    totals = k.load(F32x16, sums)
    if fmt.group == 32:
        totals = totals.shuffle(range(0, 16, 2)) + totals.shuffle(range(1, 16, 2))
    kind = F32x16 if fmt.group == 16 else F32x8
    minima = number_floats(k, fmt.minima, weights) * totals
    minima = minima * block_minimum(k, fmt, weights, kind)
    minima = minima if kind is F32x16 else minima.cat(k.zero(F32x8))
    return minima if _LANES == 16 else minima.cat(k.zero(F32x16))


_store_sum_16 = inline(types.none, Int, Int)(lambda k, target, x: k.store(target, k.hsum(k.load(F32x16, x))))


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
        # 8-bit codes in 16 registers: four inputs take 3.0 to 3.8 x the time of one, two 1.35 to 1.65 x
        counts = TWO_AT_MOST if fmt.name == "Q8_0" and TIER != "A" else _COUNTS
        part = Part(fmt.block_elems, add, fmt.block_bytes, 4 * fmt.block_elems)
        rows = make_rows(_SUMS_KIND, lines, part, counts=counts)
        return RowKernel(pack_floats, rows, records(1, 4))
    rows = make_rows(_SUMS_KIND, lines, Part(256, add, fmt.block_bytes, _PACKED_SUMS), counts=_COUNTS)
    return RowKernel(_pack_sums, rows, records(256, _PACKED_SUMS))


def apart_kernel(layout: Apart) -> RowKernel:
    """Generate the kernel for a layout that stores codes and scales apart."""
    fmt = layout.codes

    @inline(_FLOATS, _FLOATS, Int, Int, Int)
    def add(k, total, codes, scale, x):
        return _add_block(k, fmt, total, codes, scale, x)

    part = Part(fmt.block_elems, add, fmt.block_bytes, 4 * fmt.block_elems)
    rows = make_rows(_SUMS_KIND, -(-fmt.block_bytes // 64), part, counts=_COUNTS, apart=layout)
    return RowKernel(pack_floats, rows, records(1, 4))


PLAIN = {"F32": _plain(_decode_f32, 4), "F16": _plain(_decode_f16, 2), "BF16": _plain(_decode_bf16, 2)}
