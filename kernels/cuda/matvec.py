"""Products of one or a few input vectors with quantized matrices: decode is these, and their bound is memory.

One launch multiplies ``pairs`` inputs with matrices of ``rows`` rows each; which matrix and which input belong to a
pair is a matter of a few numbers (``launch``), so that plain, grouped and expert products are one kernel. A warp takes
a few rows at a time and walks over them in chunks. Raw bytes of chunks ahead are on their way into shared memory
(cp.async, 16 bytes a lane, across the ends of rows and of experts: a warp always has the next bytes under way) while a
lane decodes one unit of 32 weights of each row (``units``) and multiplies it with the inputs, which the rows share:

    integer inputs (a8, q8k)   8 dp4a a unit, then its scale, and the minima times the sums of 16 codes
    float inputs               32 multiply-adds a unit; the numbers are those of the file, the sums float32

Rows need not start at a multiple of 16 bytes: a chunk is copied from the multiple below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .intrinsics import (
    bits_to_float,
    copy16,
    copy_commit,
    copy_wait0,
    copy_wait1,
    divide,
    dp2a_low,
    dp4a,
    element,
    load4,
    permute_bytes,
    read2,
    read4,
    remainder,
    sync_warp,
    warp_sum,
)
from .shim import SIMULATED, allow_shared, cuda, f32, i32, multiprocessors, shared_limit
from .units import UNITS, Unit, straight

F32, I32 = np.float32, np.int32
ZERO = np.float32(0)


class Layout(NamedTuple):
    """How a kernel cuts its work: rows a warp takes at a time, units a lane decodes of each in a chunk, chunks in
    shared memory, warps of a block, blocks a multiprocessor takes, registers a thread may have."""

    rows: int
    passes: int
    stages: int
    warps: int
    blocks: int
    registers: int


LAYOUTS = {
    "Q8_0": (Layout(2, 1, 2, 4, 8, 64), Layout(1, 1, 3, 4, 8, 64)),
    "Q4_0": (Layout(4, 1, 2, 4, 6, 80), Layout(1, 2, 3, 4, 8, 64)),
    "Q2_K": (Layout(4, 2, 2, 8, 3, 80), Layout(2, 2, 2, 8, 3, 80), Layout(1, 2, 3, 8, 3, 80)),
    "Q4_K": (Layout(4, 1, 2, 8, 3, 80), Layout(2, 1, 3, 8, 3, 80), Layout(1, 1, 3, 8, 3, 80)),
    "Q6_K": (Layout(2, 1, 2, 4, 6, 80), Layout(1, 1, 3, 4, 6, 80)),
    "IQ2_XXS": (
        Layout(4, 4, 2, 16, 1, 96),
        Layout(2, 4, 2, 16, 1, 96),
        Layout(4, 2, 2, 8, 2, 96),
        Layout(2, 2, 2, 8, 2, 96),
        Layout(1, 4, 2, 16, 1, 96),
    ),
}
"""Of each format, from many rows at a time to one: the more rows share inputs and bookkeeping, the less there is to
compute, and the fewer warps have work. The last one fits every GPU. docs/cuda.md says what was measured."""


class Kernel(NamedTuple):
    """A compiled kernel and what its launch needs besides operands."""

    run: Any
    layout: Layout
    shared_bytes: int


FLOAT_ROWS = 2
"""Rows at a time at most with float inputs: more would not leave registers for all that is alive."""

BUSY = 0.7
"""Share of warps with work below which rows are taken in smaller groups."""

BYTE_BIAS, EXPONENT_23 = np.int32(-0x7F7F7F80), np.int32(0x4B000000)
BIASED = np.float32(2**23 + 128)


@cuda.jit(device=True)
def _signed_byte(biased, selector):
    """A byte as a float: it becomes the last bits of 2^23 + 128 + byte."""
    return bits_to_float(permute_bytes(biased, EXPONENT_23, selector)) - BIASED


@cuda.jit(device=True)
def _float_dot(q, x, total):
    """total + four signed bytes times four floats, given as words."""
    biased = np.int32(q ^ BYTE_BIAS)
    total += _signed_byte(biased, 0x7540) * bits_to_float(x[0])
    total += _signed_byte(biased, 0x7541) * bits_to_float(x[1])
    total += _signed_byte(biased, 0x7542) * bits_to_float(x[2])
    total += _signed_byte(biased, 0x7543) * bits_to_float(x[3])
    return total


def _fetcher(chunk_bytes: int) -> Callable[..., Any]:
    """A device function that begins to copy a chunk of one row: ``start`` is its first byte, ``size`` its bytes."""
    per_lane = -(-(chunk_bytes + 14) // 16) // 32 + 1

    @cuda.jit(device=True)
    def fetch(words, place, raw, start, size):
        lane = cuda.threadIdx.x
        skew = I32(start & 15)
        count = I32((skew + size + 15) >> 4)
        source, target = start - skew + 16 * lane, I32(place + 4 * lane)
        for k in range(per_lane):
            if lane + 32 * k < count:
                copy16(words, target + 128 * k, raw, source + 512 * k)

    return fetch


def _chunk_bytes(unit: Unit, layout: Layout) -> int:
    """Bytes of a row that a warp takes at a time."""
    return 32 * layout.passes // unit.per_block * unit.block_bytes


def _pitch(unit: Unit, layout: Layout) -> int:
    """Words from one row of a chunk to the next: the chunk, what is before it in its first 16 bytes, and what decoding
    reads behind the last block."""
    return (_chunk_bytes(unit, layout) + 14 + 16 + 15) // 16 * 4


def _table_words(unit: Unit) -> int:
    return 0 if unit.table is None else 32 * len(unit.table)


def shared_bytes(unit: Unit, layout: Layout) -> int:
    """Shared memory of a block."""
    return 4 * (_table_words(unit) + layout.warps * layout.stages * (4 + layout.rows * _pitch(unit, layout)))


@cache
def kernel(fmt: str, act: str, layout: Layout) -> Kernel:
    """The kernel of a format and a rounding of the inputs (float, or the integer one that goes with the format)."""
    unit = UNITS[fmt]
    if SIMULATED:
        layout = layout._replace(warps=2)
    return Kernel(_rows(unit, act, layout), layout, shared_bytes(unit, layout))


def _rows(unit: Unit, act: str, layout: Layout) -> Any:
    chunk_units, chunk_bytes, pitch = 32 * layout.passes, _chunk_bytes(unit, layout), _pitch(unit, layout)
    table_words = _table_words(unit)
    decode, column, per_block, block_bytes = unit.decode, unit.column, unit.per_block, unit.block_bytes
    minima, halves, in_order, floats = unit.minima, unit.halves, unit.column is straight, act == "float"
    passes, stages, warps = layout.passes, layout.stages, layout.warps
    fetch = _fetcher(chunk_bytes)
    wait = copy_wait1 if stages == 3 else copy_wait0
    assert stages in (2, 3)
    block_weights, block_bits = 32 * per_block, per_block.bit_length() - 1
    at_once = layout.rows
    stage_words = 4 + at_once * pitch
    table = np.zeros(1, np.int32) if unit.table is None else unit.table

    @cuda.jit(max_registers=layout.registers)
    def multiply(
        raw, row_bytes, ids, experts, groups, slots, share, codes, scales, sums, out, rows, n, pairs, error, failure
    ):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        words = cuda.shared.array(0, i32)
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(warp * 32 + lane, table_words, warps * 32):
                words[i] = looked_up[i >> 5]
            cuda.syncthreads()
        own = I32(table_words + warp * (stages * stage_words))

        # int32 wherever it is enough: Numba computes in int64, which takes group registers
        units = n >> 5
        chunks = divide(units + chunk_units - 1, chunk_units)
        per_pair = divide(rows + at_once - 1, at_once)
        stride = I32(cuda.gridDim.x * warps)
        first = I32(cuda.blockIdx.x * warps + warp)
        pair, stride_pair = divide(first, per_pair), divide(stride, per_pair)
        group, stride_group = I32(first - pair * per_pair), I32(stride - stride_pair * per_pair)
        left = I32(0)
        if first < pairs * per_pair:
            left = I32((divide(pairs * per_pair - 1 - first, stride) + 1) * slots * chunks)

        # The next chunk to fetch: of ``at_once`` rows, the ``group``-th such, for ``pair``. What its multiplication has
        # to know goes with it into shared memory.
        slot, chunk, start = I32(0), I32(0), np.int64(0)
        into, out_of = I32(0), I32(0)
        totals = cuda.local.array(at_once, f32)
        for r in range(at_once):
            totals[r] = ZERO
        for step in range(I32(1 - stages), left):
            if step >= 0:
                wait()
                sync_warp()
            if step + stages - 1 < left:
                row = I32(at_once * group)
                if chunk == 0:
                    if experts > 0:
                        which = I32(element(ids, pair * slots + slot))
                        if which < 0 or which >= experts:
                            error[0] = failure
                            which = I32(0)
                    else:
                        which = remainder(pair, groups)
                    start = (np.int64(which) * rows + row) * row_bytes
                size = I32(min(chunk_bytes, row_bytes - chunk * chunk_bytes))
                place = I32(own + into * stage_words)
                into = I32(into + 1 if into + 1 < stages else 0)
                there, skews = I32(min(at_once, rows - row)), I32(0)
                for r in range(at_once):
                    begin = start + min(r, there - 1) * row_bytes
                    skews = I32(skews | (begin & 15) << (4 * r))
                    fetch(words, place + 4 + r * pitch, raw, begin, size)
                if lane == 0:
                    ends = chunk + 1 == chunks and slot + 1 == slots
                    words[place] = I32(skews | ((there if ends else 0) << 16))
                    words[place + 1] = divide(pair * slots + slot, share)
                    words[place + 2] = I32(chunk * chunk_units)
                    words[place + 3] = I32(pair * rows + row)
                start += chunk_bytes
                chunk = I32(chunk + 1)
                if chunk == chunks:
                    chunk = I32(0)
                    slot = I32(slot + 1)
                    if slot == slots:
                        slot = I32(0)
                        pair = I32(pair + stride_pair)
                        group = I32(group + stride_group)
                        if group >= per_pair:
                            group = I32(group - per_pair)
                            pair = I32(pair + 1)
            copy_commit()
            if step >= 0:
                place = I32(own + out_of * stage_words)
                out_of = I32(out_of + 1 if out_of + 1 < stages else 0)
                about, vector, before, result = load4(words, place)
                for k in range(I32(passes)):
                    inside = I32(k * 32 + lane)
                    number = I32(before + inside)
                    if number < units:
                        block, j = inside >> block_bits, inside & (per_block - 1)
                        x = I32(vector * n + (number >> block_bits) * block_weights)
                        at = 4 * (place + 4) + block * block_bytes
                        if floats:
                            t0, t1 = ZERO, ZERO
                            if minima:
                                t = read2(sums, 2 * (vector * units + number))
                                t0, t1 = bits_to_float(t[0]), bits_to_float(t[1])
                            for r in range(at_once):
                                skew = (about >> (4 * r)) & 15
                                q0, q1, q2, q3, q4, q5, q6, q7, f, g, m = decode(
                                    words, at + r * (4 * pitch) + skew, j, words
                                )
                                p = _float_dot(q0, read4(codes, x + column(j, 0)), ZERO)
                                p = _float_dot(q1, read4(codes, x + column(j, 1)), p)
                                p = _float_dot(q2, read4(codes, x + column(j, 2)), p)
                                p = _float_dot(q3, read4(codes, x + column(j, 3)), p)
                                if halves:
                                    totals[r] += f * p
                                    p = ZERO
                                p = _float_dot(q4, read4(codes, x + column(j, 4)), p)
                                p = _float_dot(q5, read4(codes, x + column(j, 5)), p)
                                p = _float_dot(q6, read4(codes, x + column(j, 6)), p)
                                p = _float_dot(q7, read4(codes, x + column(j, 7)), p)
                                p = p * (g if halves else f)
                                if minima:
                                    p -= g * (F32(m & 255) * t0 + F32(m >> 8) * t1)
                                totals[r] += p
                        else:
                            x = I32(x >> 2)
                            if in_order:
                                x0, x1, x2, x3 = read4(codes, x + 8 * j)
                                x4, x5, x6, x7 = read4(codes, x + 8 * j + 4)
                            else:
                                x0, x1 = read2(codes, x + (column(j, 0) >> 2))
                                x2, x3 = read2(codes, x + (column(j, 2) >> 2))
                                x4, x5 = read2(codes, x + (column(j, 4) >> 2))
                                x6, x7 = read2(codes, x + (column(j, 6) >> 2))
                            scale = element(scales, vector * (units >> block_bits) + (number >> block_bits))
                            t = I32(0)
                            if minima:
                                t = element(sums, vector * units + number)
                            for r in range(at_once):
                                skew = (about >> (4 * r)) & 15
                                q0, q1, q2, q3, q4, q5, q6, q7, f, g, m = decode(
                                    words, at + r * (4 * pitch) + skew, j, words
                                )
                                i = dp4a(q3, x3, dp4a(q2, x2, dp4a(q1, x1, dp4a(q0, x0, 0))))
                                if halves:
                                    p = f * F32(i) + g * F32(dp4a(q7, x7, dp4a(q6, x6, dp4a(q5, x5, dp4a(q4, x4, 0)))))
                                else:
                                    p = f * F32(dp4a(q7, x7, dp4a(q6, x6, dp4a(q5, x5, dp4a(q4, x4, i)))))
                                if minima:
                                    p -= g * F32(dp2a_low(t, m, 0))
                                totals[r] += scale * p
                there = about >> 16
                if there > 0:
                    for r in range(at_once):
                        total = warp_sum(totals[r])
                        totals[r] = ZERO
                        if lane == 0 and r < there:
                            out[result + r] = total

    return multiply


def launch(
    stream: Any, made: Kernel, raw: Any, row_bytes: int, operands: tuple[Any, ...], rows: int, n: int, pairs: int,
    error: Any, failure: int,
) -> None:  # fmt: skip
    """``operands``: ids, experts, groups, slots, share, codes, scales, sums, out.

    Of pair p, result o is the sum over slots s of row o of a matrix times input (p slots + s) // share. The matrix is
    number ids[p slots + s] of ``experts``; if there are none, p mod ``groups``.
    """
    layout = made.layout
    wanted = -(-(pairs * -(-rows // layout.rows)) // layout.warps)
    grid = min(wanted, multiprocessors() * layout.blocks)
    args = raw, row_bytes, *operands, rows, n, pairs, error, failure
    allow_shared(made.run, made.shared_bytes, args)
    made.run[grid, (32, layout.warps), stream, made.shared_bytes](*args)


def choose(fmt: str, act: str, rows: int, pairs: int) -> Kernel:
    """The kernel for ``pairs`` products with ``rows`` rows: as many rows at a time as leave all warps busy."""
    most = FLOAT_ROWS if act == "float" else LAYOUTS[fmt][0].rows
    layouts = [layout for layout in LAYOUTS[fmt] if layout.rows <= most]
    fitting = [layout for layout in layouts if shared_bytes(UNITS[fmt], layout) <= shared_limit()]
    for layout in fitting[:-1]:
        warps = multiprocessors() * layout.blocks * layout.warps
        groups = pairs * -(-rows // layout.rows)
        if groups / (-(-groups // warps) * warps) >= BUSY:
            return kernel(fmt, act, layout)
    return kernel(fmt, act, fitting[-1])
