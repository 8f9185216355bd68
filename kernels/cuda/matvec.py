"""Products of one or a few input vectors with quantized matrices: decode is these, and their bound is memory.

One launch multiplies ``pairs`` inputs with one matrix, or with two of one format that have the same inputs (gate and
up), of any number of rows; which matrix of a stack and which input belong to a pair is a matter of a few numbers
(``launch``), so that plain, grouped and expert products are one kernel. A warp takes a few rows at a time and walks
over them in chunks. Raw bytes of chunks ahead are on their way into shared memory (cp.async, 16 bytes a lane, across
the ends of rows and of experts: a warp always has the next bytes under way) while a lane multiplies one unit of 32
weights of each row (``units``) with the inputs, which the rows share:

    integer inputs (a8, q8k)   ``dots``: dp4a, scales and minima as the format allows
    float inputs               32 multiply-adds a unit; the numbers are those of the file, the sums float32

Where there are fewer groups of rows than warps, several warps of a block share a group: each takes a part of its
chunks, and the first one adds their sums in order.

Rows need not start at a multiple of 16 bytes: a chunk is copied from the multiple below. Where they do, and have whole
chunks (``whole``), which rows of real sizes do, a kernel is made that need not look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .dots import dot_of
from .intrinsics import (
    bits_to_float,
    copy16,
    copy_commit,
    copy_wait0,
    copy_wait1,
    divide,
    element,
    float_bits,
    permute_bytes,
    read2,
    read4,
    remainder,
    shuffle_xor,
    store4,
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
    "Q2_K": (Layout(4, 2, 2, 4, 5, 96), Layout(2, 2, 2, 4, 6, 80), Layout(1, 2, 3, 4, 6, 80)),
    "Q4_K": (Layout(4, 1, 2, 4, 6, 80), Layout(2, 1, 3, 4, 6, 80), Layout(1, 1, 3, 4, 6, 80)),
    "Q6_K": (Layout(2, 2, 2, 4, 6, 80), Layout(1, 2, 3, 4, 6, 80)),
    "IQ2_XXS": (
        Layout(4, 4, 2, 16, 1, 96),
        Layout(4, 2, 2, 16, 1, 96),
        Layout(2, 4, 2, 16, 1, 96),
        Layout(2, 2, 2, 16, 1, 96),
        Layout(1, 4, 2, 16, 1, 96),
    ),
}
"""Of each format, from many rows at a time to one: the more rows share inputs and bookkeeping, the less there is to
compute, and the fewer warps have work. The last one fits every GPU. docs/cuda.md says what was measured."""

FLOAT_ROWS, FLOAT_REGISTERS = 2, 80
"""With float inputs more is alive: rows at a time at most, and registers that a thread may have at least."""

BUSY = 0.7
"""Share of warps with work below which rows are taken in smaller groups."""
ENOUGH_WARPS = 12
"""Warps that keep a multiprocessor busy while others wait, about."""

BYTE_BIAS, EXPONENT_23 = np.int32(-0x7F7F7F80), np.int32(0x4B000000)
BIASED = np.float32(2**23 + 128)
SECOND = np.int32(8)
"""In what is known of a chunk that ends rows, beside their number: they are of the second matrix."""


class Kernel(NamedTuple):
    """A compiled kernel and what its launch needs besides operands. ``split_bits``: logarithm of the number of warps
    that share a group of rows."""

    run: Any
    layout: Layout
    shared_bytes: int
    split_bits: int


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


def _float_unit(unit: Unit) -> Callable[..., Any]:
    """A device function: unit j of a row times float inputs from ``x`` on, whose sums are t0 and t1."""
    decode, column, minima, halves = unit.decode, unit.column, unit.minima, unit.halves

    @cuda.jit(device=True)
    def product(words, at, odd, j, codes, x, t0, t1):
        q0, q1, q2, q3, q4, q5, q6, q7, f, g, m = decode(words, at, odd, j, words)
        p = _float_dot(q0, read4(codes, x + column(j, 0)), ZERO)
        p = _float_dot(q1, read4(codes, x + column(j, 1)), p)
        p = _float_dot(q2, read4(codes, x + column(j, 2)), p)
        p = _float_dot(q3, read4(codes, x + column(j, 3)), p)
        first = ZERO
        if halves:
            first = f * p
            p = ZERO
        p = _float_dot(q4, read4(codes, x + column(j, 4)), p)
        p = _float_dot(q5, read4(codes, x + column(j, 5)), p)
        p = _float_dot(q6, read4(codes, x + column(j, 6)), p)
        p = _float_dot(q7, read4(codes, x + column(j, 7)), p)
        p = p * (g if halves else f)
        if minima:
            p -= g * (F32(m & 255) * t0 + F32(m >> 8) * t1)
        return first + p

    return product


@cuda.jit(device=True)
def _sum4(a, b, c, d):
    """Of four values the sums over all lanes, in lanes 0 to 7 that of a, in the next eight that of b, and so on: lanes
    part with the half that is not theirs."""
    upper = cuda.threadIdx.x & 16
    p = (c if upper else a) + shuffle_xor(a if upper else c, 16)
    q = (d if upper else b) + shuffle_xor(b if upper else d, 16)
    upper = cuda.threadIdx.x & 8
    p = (q if upper else p) + shuffle_xor(p if upper else q, 8)
    p += shuffle_xor(p, 4)
    p += shuffle_xor(p, 2)
    return p + shuffle_xor(p, 1)


@cuda.jit(device=True)
def _sum2(a, b):
    """Of two values: that of a in the lower half of the lanes."""
    upper = cuda.threadIdx.x & 16
    p = (b if upper else a) + shuffle_xor(a if upper else b, 16)
    p += shuffle_xor(p, 8)
    p += shuffle_xor(p, 4)
    p += shuffle_xor(p, 2)
    return p + shuffle_xor(p, 1)


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
    return 4 * (_table_words(unit) + layout.warps * layout.stages * layout.rows * _pitch(unit, layout))


def is_whole(unit: Unit, layout: Layout, n: int) -> bool:
    """Whether rows of n weights start at multiples of 16 bytes and have whole chunks."""
    row_bytes = n // 32 // unit.per_block * unit.block_bytes
    chunk_bytes = _chunk_bytes(unit, layout)
    return row_bytes % 16 == 0 and chunk_bytes % 16 == 0 and row_bytes % chunk_bytes == 0


@cache
def kernel(fmt: str, act: str, layout: Layout, whole: bool = False, split_bits: int = 0) -> Kernel:
    """The kernel of a format and a rounding of the inputs (float, or the integer one that goes with the format)."""
    unit = UNITS[fmt]
    if SIMULATED:
        layout = layout._replace(warps=2)
    return Kernel(_rows(fmt, act == "float", layout, whole), layout, shared_bytes(unit, layout), split_bits)


@cache
def _rows(fmt: str, floats: bool, layout: Layout, whole: bool) -> Any:
    unit = UNITS[fmt]
    chunk_units, chunk_bytes, pitch = 32 * layout.passes, _chunk_bytes(unit, layout), _pitch(unit, layout)
    table_words = _table_words(unit)
    column, minima, in_order = unit.column, unit.minima, unit.column is straight
    per_block, block_bytes = unit.per_block, unit.block_bytes
    passes, stages, warps, at_once = layout.passes, layout.stages, layout.warps, layout.rows
    pass_bytes, block_weights = chunk_bytes // passes, 32 * per_block
    wait = copy_wait1 if stages == 3 else copy_wait0
    assert stages in (2, 3) and at_once in (1, 2, 4)
    row_bits, block_bits, chunk_bits = (number.bit_length() - 1 for number in (at_once, per_block, chunk_units))
    assert chunk_units == 1 << chunk_bits
    lane_bits, lane_mask = 5 - row_bits, (32 >> row_bits) - 1
    stage_words = at_once * pitch
    pieces = chunk_bytes // 16
    per_lane = -(-chunk_bytes // 16 // 32) if whole else -(-(chunk_bytes + 14) // 16) // 32 + 1
    table = np.zeros(1, np.int32) if unit.table is None else unit.table
    prepare, dot = dot_of(fmt)
    float_unit = _float_unit(unit)

    @cuda.jit(max_registers=max(layout.registers, FLOAT_REGISTERS) if floats else layout.registers)
    def multiply(
        raw, raw2, row_bytes, ids, experts, groups, slots, share, codes, scales, sums, out, out2, rows, rows2, n, pairs,
        split_bits, rounds, extra, error, failure,
    ):  # fmt: skip
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        words = cuda.shared.array(0, i32)
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(warp * 32 + lane, table_words >> 2, warps * 32):
                store4(words, 4 * i, looked_up[i >> 3])
            cuda.syncthreads()
        own = I32(table_words + warp * (stages * stage_words))

        # int32 wherever it is enough: Numba computes in int64, which takes group registers. A piece of work is a group
        # of rows for a pair, all its slots and chunks; this warp does turns ``low`` to ``high`` of those it takes.
        units = I32(n >> 5)
        chunks = I32((units + chunk_units - 1) >> chunk_bits)
        part, most = I32(warp & ((1 << split_bits) - 1)), I32(slots * chunks)
        low, high = I32((part * most) >> split_bits), I32(((part + 1) * most) >> split_bits)
        item = I32(cuda.blockIdx.x * (warps >> split_bits) + (warp >> split_bits))
        stride = I32(cuda.gridDim.x * (warps >> split_bits))
        left = I32((rounds + (1 if item < extra else 0)) * (high - low))
        firsts = I32(pairs * ((rows + at_once - 1) >> row_bits))

        # The next chunk to fetch, and what its multiplication has to know, which waits here until it is there.
        turn, slot, chunk = low, I32(0), low
        if split_bits > 0:
            slot = divide(low, chunks)
            chunk = I32(low - slot * chunks)
        start, source, there, result, first_unit = np.int64(0), raw, I32(0), I32(0), I32(0)
        next_unit, next_room, next_skews, next_ends, next_result = I32(0), I32(0), I32(0), I32(0), I32(0)
        mid_unit, mid_room, mid_skews, mid_ends, mid_result = I32(0), I32(0), I32(0), I32(0), I32(0)
        into, out_of = own, own
        end = I32(own + stages * stage_words)
        totals, offsets = cuda.local.array(at_once, f32), cuda.local.array(at_once, i32)
        for r in range(at_once):
            totals[r] = ZERO
            offsets[r] = I32(0)
        for step in range(I32(1 - stages), left):
            if step >= 0:
                wait()
                sync_warp()
            if stages == 3:
                unit_0, room, skews, ends, to = mid_unit, mid_room, mid_skews, mid_ends, mid_result
                mid_unit, mid_room, mid_skews, mid_ends, mid_result = (
                    next_unit, next_room, next_skews, next_ends, next_result,
                )  # fmt: skip
            else:
                unit_0, room, skews, ends, to = next_unit, next_room, next_skews, next_ends, next_result
            if step + stages - 1 < left:
                if chunk == 0 or turn == low:
                    number, height, source = item, I32(rows), raw
                    there = I32(0)
                    if item >= firsts:
                        number, height, source = I32(item - firsts), I32(rows2), raw2
                        there = SECOND
                    pair = I32(0)
                    if pairs > 1:
                        per_pair = I32((height + at_once - 1) >> row_bits)
                        pair = divide(number, per_pair)
                        number = I32(number - pair * per_pair)
                    row, vector = I32(number << row_bits), I32(pair * slots + slot)
                    here = I32(min(at_once, height - row))
                    there = I32(there + here)
                    result = I32(pair * height + row)
                    which = I32(0)
                    if experts > 0:
                        which = I32(element(ids, vector))
                        if which < 0 or which >= experts:
                            error[0] = failure
                            which = I32(0)
                    elif groups > 1:
                        which = remainder(pair, groups)
                    if share > 1:
                        vector = divide(vector, share)
                    start = (np.int64(which) * height + row) * row_bytes + chunk * chunk_bytes
                    if whole:
                        start += 16 * lane
                    first_unit = I32(vector * units)
                    for r in range(1, at_once):
                        offsets[r] = I32(min(r, here - 1) * row_bytes)
                next_unit, next_skews = I32(first_unit + chunk * chunk_units), I32(0)
                next_room, next_result = I32(units - chunk * chunk_units), result
                for r in range(at_once):
                    begin, target = start + offsets[r], I32(into + r * pitch + 4 * lane)
                    if whole:
                        for k in range(per_lane):
                            if 32 * k + 31 < pieces or lane < pieces - 32 * k:
                                copy16(words, target + 128 * k, source, begin + 512 * k)
                    else:
                        skew = I32(begin & 15)
                        next_skews = I32(next_skews | skew << (4 * r))
                        size = I32(min(chunk_bytes, row_bytes - chunk * chunk_bytes))
                        count = I32((skew + size + 15) >> 4)
                        for k in range(per_lane):
                            if lane + 32 * k < count:
                                copy16(words, target + 128 * k, source, begin - skew + 16 * lane + 512 * k)
                into = I32(into + stage_words)
                into = own if into == end else into
                start += chunk_bytes
                turn, chunk = I32(turn + 1), I32(chunk + 1)
                if chunk == chunks:
                    chunk = I32(0)
                    slot = I32(slot + 1)
                next_ends = I32(0)
                if turn == high and split_bits == 0:
                    next_ends = there
                    item = I32(item + stride)
                    turn, slot, chunk = I32(0), I32(0), I32(0)
            copy_commit()
            if step >= 0:
                j, block = I32(lane & (per_block - 1)), I32(lane >> block_bits)
                for k in range(I32(passes)):
                    inside = I32(k * 32 + lane)
                    if whole or inside < room:
                        u = I32(unit_0 + inside)
                        at = I32(4 * out_of + k * pass_bytes + block * block_bytes)
                        odd_0 = I32(at & 2)
                        odd = odd_0
                        at = I32(at & ~3)
                        if floats:
                            x = I32((u >> block_bits) * block_weights)
                            t0, t1 = ZERO, ZERO
                            if minima:
                                t = read2(sums, 2 * u)
                                t0, t1 = bits_to_float(t[0]), bits_to_float(t[1])
                            for r in range(at_once):
                                place = I32(at + r * (4 * pitch))
                                if not whole:
                                    place = I32(place + odd_0 + ((skews >> (4 * r)) & 15))
                                    odd = I32(place & 2)
                                    place = I32(place & ~3)
                                totals[r] += float_unit(words, place, odd, j, codes, x, t0, t1)
                        else:
                            x = I32((u >> block_bits) * (block_weights >> 2))
                            if in_order:
                                x0, x1, x2, x3 = read4(codes, x + 8 * j)
                                x4, x5, x6, x7 = read4(codes, x + 8 * j + 4)
                            else:
                                x0, x1 = read2(codes, x + (column(j, 0) >> 2))
                                x2, x3 = read2(codes, x + (column(j, 2) >> 2))
                                x4, x5 = read2(codes, x + (column(j, 4) >> 2))
                                x6, x7 = read2(codes, x + (column(j, 6) >> 2))
                            t = I32(0)
                            if minima:
                                t = element(sums, u)
                            scale, t = prepare(element(scales, u >> block_bits), t, j)
                            for r in range(at_once):
                                place = I32(at + r * (4 * pitch))
                                if not whole:
                                    place = I32(place + odd_0 + ((skews >> (4 * r)) & 15))
                                    odd = I32(place & 2)
                                    place = I32(place & ~3)
                                totals[r] += scale * dot(words, place, odd, j, x0, x1, x2, x3, x4, x5, x6, x7, t, words)
                out_of = I32(out_of + stage_words)
                out_of = own if out_of == end else out_of
                if ends > 0:
                    total = totals[0]
                    if at_once == 4:
                        total = _sum4(totals[0], totals[1], totals[2], totals[3])
                    elif at_once == 2:
                        total = _sum2(totals[0], totals[1])
                    else:
                        total = warp_sum(total)
                    row = I32(lane >> lane_bits)
                    if lane & lane_mask == 0 and row < ends & 7:
                        if ends >= SECOND:
                            out2[to + row] = total
                        else:
                            out[to + row] = total
                    for r in range(at_once):
                        totals[r] = ZERO
        if split_bits > 0:
            for r in range(at_once):
                total = warp_sum(totals[r])
                sync_warp()  # all lanes have read the last chunk
                if lane == 0:
                    words[own + r] = float_bits(total)
            cuda.syncthreads()
            if part == 0 and lane < there & 7:
                total = ZERO
                for k in range(1 << split_bits):
                    total += bits_to_float(words[own + k * (stages * stage_words) + lane])
                if there >= SECOND:
                    out2[result + lane] = total
                else:
                    out[result + lane] = total

    return multiply


class Weights(NamedTuple):
    """A matrix, or the first of a stack, of ``rows`` rows, and where the results of its products go."""

    raw: Any
    rows: int
    out: Any


def launch(
    stream: Any, made: Kernel, weights: Sequence[Weights], operands: tuple[Any, ...], row_bytes: int, n: int,
    pairs: int, error: Any, failure: int,
) -> None:  # fmt: skip
    """``operands``: ids, experts, groups, slots, share, codes, scales, sums. One or two ``weights``.

    Of pair p, result o is the sum over slots s of row o of a matrix times input (p slots + s) // share. The matrix is
    number ids[p slots + s] of ``experts``; if there are none, p mod ``groups``.
    """
    layout, split_bits = made.layout, made.split_bits
    first, second = weights[0], weights[1] if len(weights) > 1 else weights[0]._replace(rows=0)
    pieces = sum(pairs * -(-w.rows // layout.rows) for w in weights)
    at_once = layout.warps >> split_bits
    grid = -(-pieces // at_once)
    if not split_bits:
        grid = min(grid, multiprocessors() * layout.blocks)
    rounds, extra = divmod(pieces, grid * at_once)
    args = (
        first.raw, second.raw, row_bytes, *operands, first.out, second.out, first.rows, second.rows, n, pairs,
        split_bits, rounds, extra, error, failure,
    )  # fmt: skip
    allow_shared(made.run, made.shared_bytes, args)
    made.run[grid, (32, layout.warps), stream, made.shared_bytes](*args)


def busy(layout: Layout, pieces: int, split_bits: int = 0) -> float:
    """How well ``pieces`` groups of rows, ``2^split_bits`` warps each, fill the GPU: all of it is 1."""
    held = multiprocessors() * layout.blocks
    blocks = -(-(pieces << split_bits) // layout.warps)
    if blocks >= held:
        warps = held * layout.warps
        return pieces / (-(-pieces // warps) * warps)
    each = -(-blocks // multiprocessors())
    return blocks / (each * multiprocessors()) * min(1.0, each * layout.warps / ENOUGH_WARPS)


def choose(fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int = 1) -> Kernel:
    """The kernel for ``pairs`` products with matrices of so many rows of n weights: as many rows at a time as leave all
    warps busy, shared by warps where that helps. How many share decides the order of sums, so it is what the first
    matrix has by itself (``together``)."""
    alone = _chosen(fmt, act, rows[:1], n, pairs, slots, range(LAYOUTS[fmt][0].warps.bit_length()))
    return alone if len(rows) == 1 else _chosen(fmt, act, rows, n, pairs, slots, (alone.split_bits,))


def together(fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int = 1) -> bool:
    """Whether products with these matrices give the same bits in one launch as in one each."""
    return len({choose(fmt, act, [each], n, pairs, slots).split_bits for each in rows}) == 1


def _chosen(
    fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int, splits: Sequence[int]
) -> Kernel:  # fmt: skip
    """Of the layouts, with some of the warps sharing rows, the first that is busy enough, else the busiest."""
    unit = UNITS[fmt]
    most = FLOAT_ROWS if act == "float" else LAYOUTS[fmt][0].rows
    layouts = [layout for layout in LAYOUTS[fmt] if layout.rows <= most]
    fitting = [layout for layout in layouts if shared_bytes(unit, layout) <= shared_limit()]
    fitting = [layout for layout in fitting if is_whole(unit, layout, n)] or fitting
    best, most_busy = (fitting[-1], splits[0]), 0.0
    for layout in fitting:
        pieces = sum(pairs * -(-each // layout.rows) for each in rows)
        turns, warps = slots * -(-n // (1024 * layout.passes)), multiprocessors() * layout.blocks * layout.warps
        for split_bits in splits:
            if 1 << split_bits > layout.warps or split_bits and 1 << split_bits > turns:
                continue
            if len(splits) > 1 and split_bits and pieces << split_bits > warps:
                continue
            now = busy(layout, pieces, split_bits)
            if now > most_busy:
                best, most_busy = (layout, split_bits), now
            if most_busy >= BUSY:
                break
        if most_busy >= BUSY:
            break
    layout, split_bits = best
    return kernel(fmt, act, layout, is_whole(unit, layout, n), split_bits)
