"""Mat-vec: one or a few input vectors times quantized matrices (decode); bound by memory bandwidth.

One launch multiplies ``pairs`` inputs with one matrix, or with two of one format that have the same inputs (gate and
up), of any number of rows. ``Routing`` says which matrix of a stack and which input belong to a pair, so that plain,
grouped and expert products are one kernel. A warp takes a few rows at a time and processes them in chunks, in three
steps:

    fetch      start copying the raw bytes of a later chunk into shared memory (cp.async, 16 bytes a lane), across the
               ends of rows and of experts: a warp always has the next bytes in flight
    consume    multiply a chunk that has arrived: a lane multiplies one unit of 32 weights of each row (``dots``) with
               the inputs, which the rows share
    finish     add the lanes' sums and write the results of rows that end

Where there are fewer groups of rows than warps, several warps of a block share a group: each takes a part of its
chunks, and ``merge`` adds their sums in order.

Rows need not start at a multiple of 16 bytes: a chunk is copied from the multiple below. Where they do, and have whole
chunks (``whole``), as rows of real sizes do, a specialised kernel skips the checks.

Kernels compute in int32 where it suffices: Numba defaults to int64, which takes two registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...formats import FORMATS
from ...formats.matrix import Matrix
from ..driver.intrinsics import (
    bits_to_float,
    copy_commit,
    copy_wait0,
    copy_wait1,
    divide,
    element,
    float_bits,
    read2,
    read4,
    shuffle_xor,
    store4,
    sync_warp,
    warp_sum,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32, multiprocessors
from . import plain
from .decoding import straight
from .dots import dot_of, float_unit_of
from .fetching import SECOND, Chunk, Cursor, Turns, Work, fetcher
from .layouts import FLOAT_REGISTERS, Layout, bits_of, choose, chunk_bytes, is_whole, pitch, shared_bytes, table_words
from .operands import Inputs, Routing, Weights, matrices_of
from .units import UNITS

F32, I32, I64 = np.float32, np.int32, np.int64
ZERO = np.float32(0)


@cuda.jit(device=True)
def _sum4(a, b, c, d):
    """Sum four values over all lanes: lanes 0 to 7 return the sum of a, the next eight that of b, and so on.

    Each step halves the work: a lane keeps one half of the values and gives the other away.
    """
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
    """Sum two values over all lanes: the lower half of the lanes returns the sum of a, the upper that of b."""
    upper = cuda.threadIdx.x & 16
    p = (b if upper else a) + shuffle_xor(a if upper else b, 16)
    p += shuffle_xor(p, 8)
    p += shuffle_xor(p, 4)
    p += shuffle_xor(p, 2)
    return p + shuffle_xor(p, 1)


def _consume(fmt: str, floats: bool, layout: Layout, whole: bool) -> Callable[..., Any]:
    """Make the device function that multiplies the weights of the chunk ``now``, which are at word ``first`` of shared
    memory, by the inputs, and adds to the totals of the rows.

    floats: whether inputs are float32 rather than int8 codes
    whole: whether rows have whole chunks and start at multiples of 16 bytes
    """
    unit, at_once, passes = UNITS[fmt], layout.rows, layout.passes
    row_bytes, pass_bytes = 4 * pitch(unit, layout), chunk_bytes(unit, layout) // layout.passes
    column, minima, in_order = unit.column, unit.minima, unit.column is straight
    per_block, block_bytes, block_bits = unit.per_block, unit.block_bytes, bits_of(unit.per_block)
    block_weights = 32 * per_block
    prepare, dot = dot_of(fmt)
    float_unit = float_unit_of(unit)

    @cuda.jit(device=True)
    def place_of(at, r, skew, skews):
        """Return where the unit's block in row r begins: a multiple of 4, and the bytes after that (0 to 3)."""
        if whole:
            return I32(at + r * row_bytes), skew
        place = I32(at + r * row_bytes + skew + ((skews >> (4 * r)) & 15))
        return I32(place & ~3), I32(place & 3)

    @cuda.jit(device=True)
    def with_floats(words, at, skew, skews, j, u, inputs, totals):
        x = I32((u >> block_bits) * block_weights)
        t0, t1 = ZERO, ZERO
        if minima:
            t = read2(inputs.sums, 2 * u)
            t0, t1 = bits_to_float(t[0]), bits_to_float(t[1])
        for r in range(at_once):
            place, behind = place_of(at, r, skew, skews)
            totals[r] += float_unit(words, place, behind, j, inputs.codes, x, t0, t1)

    @cuda.jit(device=True)
    def with_codes(words, at, skew, skews, j, u, inputs, totals):
        x = I32((u >> block_bits) * (block_weights >> 2))
        if in_order:
            x0, x1, x2, x3 = read4(inputs.codes, x + 8 * j)
            x4, x5, x6, x7 = read4(inputs.codes, x + 8 * j + 4)
        else:
            x0, x1 = read2(inputs.codes, x + (column(j, 0) >> 2))
            x2, x3 = read2(inputs.codes, x + (column(j, 2) >> 2))
            x4, x5 = read2(inputs.codes, x + (column(j, 4) >> 2))
            x6, x7 = read2(inputs.codes, x + (column(j, 6) >> 2))
        t = I32(0)
        if minima:
            t = element(inputs.sums, u)
        scale, t = prepare(element(inputs.scales, u >> block_bits), t, j)
        for r in range(at_once):
            place, behind = place_of(at, r, skew, skews)
            totals[r] += scale * dot(words, place, behind, j, x0, x1, x2, x3, x4, x5, x6, x7, t, words)

    @cuda.jit(device=True)
    def consume(words, first, now, lane, inputs, totals):
        j, block = I32(lane & (per_block - 1)), I32(lane >> block_bits)
        for k in range(I32(passes)):
            inside = I32(k * 32 + lane)
            if whole or inside < now.room:
                u = I32(now.unit + inside)
                at = I32(4 * first + k * pass_bytes + block * block_bytes)
                skew = I32(at & 3)
                at = I32(at & ~3)
                if floats:
                    with_floats(words, at, skew, now.skews, j, u, inputs, totals)
                else:
                    with_codes(words, at, skew, now.skews, j, u, inputs, totals)

    return consume


def _finish(layout: Layout) -> Callable[..., Any]:
    """Make the device function that writes the results of rows that end with the chunk ``now``, and clears the
    totals."""
    at_once, row_bits = layout.rows, bits_of(layout.rows)
    lane_bits, lane_mask = 5 - row_bits, (32 >> row_bits) - 1

    @cuda.jit(device=True)
    def finish(now, lane, matrices, totals):
        total = totals[0]
        if at_once == 4:
            total = _sum4(totals[0], totals[1], totals[2], totals[3])
        elif at_once == 2:
            total = _sum2(totals[0], totals[1])
        else:
            total = warp_sum(total)
        row = I32(lane >> lane_bits)
        if lane & lane_mask == 0 and row < now.ends & 7:
            if now.ends >= SECOND:
                matrices.out2[now.result + row] = total
            else:
                matrices.out[now.result + row] = total
        for r in range(at_once):
            totals[r] = ZERO

    return finish


def _merge(layout: Layout, stage_words: int) -> Callable[..., Any]:
    """Make the device function that adds up the totals of the warps that share rows, in order, and writes the
    results."""
    at_once, warp_words = layout.rows, layout.stages * stage_words

    @cuda.jit(device=True)
    def merge(words, at, base, lane, part, split_bits, matrices, totals):
        for r in range(at_once):
            total = warp_sum(totals[r])
            sync_warp()  # all lanes have read the last chunk
            if lane == 0:
                words[base + r] = float_bits(total)
        cuda.syncthreads()
        if part == 0 and lane < at.rows & 7:
            total = ZERO
            for k in range(1 << split_bits):
                total += bits_to_float(words[base + k * warp_words + lane])
            if at.rows >= SECOND:
                matrices.out2[at.result + lane] = total
            else:
                matrices.out[at.result + lane] = total

    return merge


@cache
def kernel(fmt: str, floats: bool, layout: Layout, whole: bool) -> Any:
    """Make the kernel for a format, for float inputs or (not ``floats``) for inputs of the format's own rounding;
    ``whole`` as in ``_consume``."""
    unit = UNITS[fmt]
    words_of_table, chunk_bits = table_words(unit), bits_of(32 * layout.passes)
    chunk_units, stages, warps = 32 * layout.passes, layout.stages, layout.warps
    at_once, row_bits = layout.rows, bits_of(layout.rows)
    stage_words = at_once * pitch(unit, layout)
    assert stages in (2, 3) and at_once in (1, 2, 4)
    wait = copy_wait1 if stages == 3 else copy_wait0
    table = np.zeros(1, np.int32) if unit.table is None else unit.table
    fetch, consume = fetcher(fmt, layout, whole), _consume(fmt, floats, layout, whole)
    finish, merge = _finish(layout), _merge(layout, stage_words)

    @cuda.jit(device=True)
    def turns_of(warp, base, matrices, routing, work):
        """Return this warp's first piece of work, its number of turns in total, which part of a piece it takes if warps
        share pieces, and its ``Turns``."""
        units = I32(matrices.n >> 5)
        chunks = I32((units + chunk_units - 1) >> chunk_bits)
        part, most = I32(warp & ((1 << work.split_bits) - 1)), I32(routing.slots * chunks)
        low, high = I32((part * most) >> work.split_bits), I32(((part + 1) * most) >> work.split_bits)
        item = I32(cuda.blockIdx.x * (warps >> work.split_bits) + (warp >> work.split_bits))
        stride = I32(cuda.gridDim.x * (warps >> work.split_bits))
        count = I32((work.rounds + (1 if item < work.extra else 0)) * (high - low))
        firsts = I32(work.pairs * ((matrices.rows + at_once - 1) >> row_bits))
        end = I32(base + stages * stage_words)
        return item, count, part, Turns(low, high, stride, firsts, chunks, units, base, end)

    @cuda.jit(max_registers=max(layout.registers, FLOAT_REGISTERS) if floats else layout.registers)
    def multiply(matrices, routing, inputs, work):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        words = cuda.shared.array(0, i32)
        if words_of_table > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(warp * 32 + lane, words_of_table >> 2, warps * 32):
                store4(words, 4 * i, looked_up[i >> 3])
            cuda.syncthreads()
        base = I32(words_of_table + warp * (stages * stage_words))
        item, count, part, turns = turns_of(warp, base, matrices, routing, work)
        slot, chunk = I32(0), turns.low
        if work.split_bits > 0:
            slot = divide(turns.low, turns.chunks)
            chunk = I32(turns.low - slot * turns.chunks)
        at = Cursor(item, turns.low, slot, chunk, I64(0), base, I32(0), I32(0), I32(0))
        later = middle = Chunk(I32(0), I32(0), I32(0), I32(0), I32(0))
        first = base
        totals = cuda.local.array(at_once, f32)
        for r in range(at_once):
            totals[r] = ZERO
        for step in range(I32(1 - stages), count):
            if step >= 0:
                wait()
                sync_warp()
            now = middle if stages == 3 else later
            middle = later
            if step + stages - 1 < count:
                at, later = fetch(words, at, lane, matrices, routing, work, turns)
            copy_commit()
            if step >= 0:
                consume(words, first, now, lane, inputs, totals)
                first = I32(first + stage_words)
                first = base if first == turns.end else first
                if now.ends > 0:
                    finish(now, lane, matrices, totals)
        if work.split_bits > 0:
            merge(words, at, base, lane, part, work.split_bits, matrices, totals)

    return multiply


def launch(
    stream: Any, fmt: str, act: str, layout: Layout, split_bits: int, weights: Sequence[Weights], n: int,
    routing: Routing, inputs: Inputs, pairs: int,
) -> None:  # fmt: skip
    """Multiply ``pairs`` inputs by one or two matrices, with ``2^split_bits`` warps for each group of rows."""
    unit = UNITS[fmt]
    pieces = sum(pairs * -(-w.rows // layout.rows) for w in weights)
    at_once = layout.warps >> split_bits
    grid = -(-pieces // at_once)
    if not split_bits:
        grid = min(grid, multiprocessors() * layout.blocks)
    run, shared = kernel(fmt, act == "float", layout, is_whole(unit, layout, n)), shared_bytes(unit, layout)
    row_bytes = FORMATS[fmt].row_bytes(n)
    args = matrices_of(weights, row_bytes, n), routing, inputs, Work(pairs, split_bits, *divmod(pieces, grid * at_once))
    allow_shared(run, shared, args)
    run[grid, (32, layout.warps), stream, shared](*args)


def multiply(
    stream: Any, out: Any, error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix, act: str, pairs: int,
    routing: Routing,
) -> None:  # fmt: skip
    """Multiply ``pairs`` packed inputs by matrices of ``w``, chosen by ``routing`` -> out (pairs, rows of a matrix)."""
    rows = w.rows // routing.groups
    _multiply(stream, [Weights(w.data, rows, out)], error, codes, scales, sums, ids, w, act, pairs, routing)


def multiply_both(
    stream: Any, out: Any, out2: Any, error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix, w2: Matrix,
    act: str, pairs: int, routing: Routing,
) -> None:  # fmt: skip
    """Do in one launch what two calls of ``multiply`` do for two matrices (or stacks) of the same format and row length
    and the same inputs, without groups."""
    parts = [Weights(w.data, w.rows, out), Weights(w2.data, w2.rows, out2)]
    _multiply(stream, parts, error, codes, scales, sums, ids, w, act, pairs, routing)


def together(w: Matrix, w2: Matrix, act: str, pairs: int, routing: Routing) -> bool:
    """Return whether ``multiply_both`` can be used, and gives the same bits as two launches."""
    if (w.fmt, w.cols) != (w2.fmt, w2.cols) or routing.groups > 1 or routing.experts and w.rows != w2.rows:
        return False
    if w.fmt in plain.VALUE_BYTES:
        return plain.warps_a_row(w.rows, pairs) == plain.warps_a_row(w2.rows, pairs)
    splits = {choose(w.fmt, act, [rows], w.cols, pairs, routing.slots)[1] for rows in (w.rows, w2.rows)}
    return len(splits) == 1


def _multiply(
    stream: Any, parts: Sequence[Weights], error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix,
    act: str, pairs: int, routing: Routing,
) -> None:  # fmt: skip
    routing = routing._replace(ids=ids, error=error)
    if w.fmt in plain.VALUE_BYTES:
        plain.rows(stream, parts, codes, w.fmt, routing, w.cols, pairs)
        return
    layout, split_bits = choose(w.fmt, act, [part.rows for part in parts], w.cols, pairs, routing.slots)
    inputs = Inputs(codes, scales, sums)
    launch(stream, w.fmt, act, layout, split_bits, parts, w.cols, routing, inputs, pairs)
