"""GEMM of many integer input vectors with quantized matrices on tensor cores (prefill).

A block multiplies ROWS rows with a tile of inputs, STEP weights of each row at a time, decoded to signed bytes in
shared memory (``staging``). A warp multiplies 32 rows with up to eight groups of eight inputs: two products of 16 x 32
bytes of weights and 32 x 8 of inputs (mma.sync, int8 to int32: exact) for each group and unit. What follows depends on
the format:

    blocks of 32 (Q8_0)       a unit's sum p becomes d p, and d p times the input's scale is added to float32 sums
    scales in codes (Q2_K)    a block of 256 is summed on the tensor cores
    scales apart (Q4_K)       s p is added to int32 sums of a block, s being the unit's integer scale; of formats with
                              two scales in a unit (Q6_K) each half of it is a product of its own

Sums of a block of 256 become floats once, times d. Minima, small integers, are multiplied with the sums of 16 inputs as
binary16: exactly, too, because all their sums are below 2^22. So results equal those of the mat-vec kernels up to the
order in which sums are added, over units or over blocks.

A sum that is certainly below 2^22 is not converted: it starts at PATTERN, whose bits are the float BIAS, so its bits
are those of the float BIAS + p. d p is then fma(BIAS + p, d, -BIAS d), rounded once, because BIAS d is exact: d is a
binary16, or a power of two, times a power of two. An infinite d makes NaN. Bounds: 32 x 128 x 128 = 2^19 of a unit,
256 x 45 x 128 < 2^21 of a block of Q2_K; sums of blocks that are converted stay below 256 x 128 x 128 x 128 = 2^29.

Float inputs: ``matmat_float``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import (
    bits_to_float,
    copy_commit,
    copy_wait0,
    divide,
    element,
    float_bits,
    lane_value,
    load2,
    load4,
    matrices4,
    mma_f16,
    mma_s8,
    mma_s8_half,
    store4,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32, i64, multiprocessors, shared_limit
from .decoding import Unit
from .grouping import TILE, Tiles
from .staging import (
    PITCH,
    RESULT_PITCH,
    ROW_WARPS,
    ROWS,
    SHORT_PITCH,
    Plan,
    decoder,
    input_copier,
    plan_of,
    row_copier,
    sums_converter,
)
from .tiling import finder
from .units import UNITS

F32, I32, I64, U64 = np.float32, np.int32, np.int64, np.uint64
ZERO, NONE = F32(0), I32(0)
BIAS = F32(3 << 22)
PATTERN = I32(BIAS.view(np.int32))
WIDE_TILE = 2 * TILE
"""Inputs per block where there are many."""


def has(fmt: str, act: str) -> bool:
    """Return whether there is such a kernel."""
    return fmt in UNITS and act == UNITS[fmt].activation


@cuda.jit(device=True)
def _four(store, at):
    """Load four floats of shared memory."""
    a, b, c, d = load4(store, at)
    return bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)


@cuda.jit(device=True)
def _two(store, at):
    """Load two floats of shared memory."""
    a, b = load2(store, at)
    return bits_to_float(a), bits_to_float(b)


@cuda.jit(device=True)
def _biased(d):
    """Return -BIAS d of four scales."""
    return -BIAS * d[0], -BIAS * d[1], -BIAS * d[2], -BIAS * d[3]


@cuda.jit(device=True)
def _add_scaled_floats(parts, at, p, d, d_2, minus, minus_2, x, y):
    """Add a unit's sums ``p`` (with BIAS) of two rows and two inputs, times their scales."""
    parts[at] = cuda.fma(cuda.fma(bits_to_float(p[0]), d, minus), x, parts[at])
    parts[at + 1] = cuda.fma(cuda.fma(bits_to_float(p[1]), d, minus), y, parts[at + 1])
    parts[at + 2] = cuda.fma(cuda.fma(bits_to_float(p[2]), d_2, minus_2), x, parts[at + 2])
    parts[at + 3] = cuda.fma(cuda.fma(bits_to_float(p[3]), d_2, minus_2), y, parts[at + 3])


@cuda.jit(device=True)
def _add_scaled(totals, at, p, s, s_2):
    """Add a unit's integer sums of two rows and two inputs, times the rows' scales."""
    totals[at] = I32(totals[at] + I32(p[0] * s))
    totals[at + 1] = I32(totals[at + 1] + I32(p[1] * s))
    totals[at + 2] = I32(totals[at + 2] + I32(p[2] * s_2))
    totals[at + 3] = I32(totals[at + 3] + I32(p[3] * s_2))


@cuda.jit(device=True)
def _whole(a, b, b_2, start):
    """Return the products of 16 rows and 8 inputs over a unit, from ``start`` on."""
    return mma_s8(a[0], a[1], a[2], a[3], b, b_2, start[0], start[1], start[2], start[3])


@cuda.jit(device=True)
def _float_units(parts, totals, at, a, a_2, b, b_2, d, minus, s, s_2, x, y, begin):
    p, q = _whole(a, b, b_2, begin), _whole(a_2, b, b_2, begin)
    _add_scaled_floats(parts, at, p, d[0], d[1], minus[0], minus[1], x, y)
    _add_scaled_floats(parts, at + 4, q, d[2], d[3], minus[2], minus[3], x, y)


@cuda.jit(device=True)
def _integer_units(parts, totals, at, a, a_2, b, b_2, d, minus, s, s_2, x, y, begin):
    zeros = (NONE, NONE, NONE, NONE)
    p, q = _whole(a, b, b_2, zeros), _whole(a_2, b, b_2, zeros)
    _add_scaled(totals, at, p, s[0], s[1])
    _add_scaled(totals, at + 4, q, s[2], s[3])


@cuda.jit(device=True)
def _half_units(parts, totals, at, a, a_2, b, b_2, d, minus, s, s_2, x, y, begin):
    _add_scaled(totals, at, mma_s8_half(a[0], a[1], b, NONE, NONE, NONE, NONE), s[0], s[1])
    _add_scaled(totals, at + 4, mma_s8_half(a_2[0], a_2[1], b, NONE, NONE, NONE, NONE), s[2], s[3])
    _add_scaled(totals, at, mma_s8_half(a[2], a[3], b_2, NONE, NONE, NONE, NONE), s_2[0], s_2[1])
    _add_scaled(totals, at + 4, mma_s8_half(a_2[2], a_2[3], b_2, NONE, NONE, NONE, NONE), s_2[2], s_2[3])


@cuda.jit(device=True)
def _sums_go_on(parts, totals, at, a, a_2, b, b_2, d, minus, s, s_2, x, y, begin):
    totals[at], totals[at + 1], totals[at + 2], totals[at + 3] = mma_s8(
        a[0], a[1], a[2], a[3], b, b_2, totals[at], totals[at + 1], totals[at + 2], totals[at + 3]
    )
    totals[at + 4], totals[at + 5], totals[at + 6], totals[at + 7] = mma_s8(
        a_2[0], a_2[1], a_2[2], a_2[3], b, b_2, totals[at + 4], totals[at + 5], totals[at + 6], totals[at + 7]
    )


def _unit_step(unit: Unit) -> Callable[..., Any]:
    """Choose the device function for a unit of 32 rows and 8 inputs."""
    if unit.per_block == 1:
        return _float_units
    if not unit.scaled:
        return _sums_go_on
    return _half_units if unit.halves else _integer_units


def _units_of_a_warp(unit: Unit, plan: Plan) -> Callable[..., Any]:
    """Make a device function: multiply two units of a warp's rows with its inputs, of which group k is there if k
    across < last."""
    alone, scaled, halves = unit.per_block == 1, unit.scaled, unit.halves
    groups, across, inputs, unit_step = plan.groups, plan.across, plan.inputs, _unit_step(unit)

    @cuda.jit(device=True)
    def two_units(store, parts, totals, a_at, b_at, scale_at, share_at, last, begin):
        a, a_2 = matrices4(store, a_at), matrices4(store, a_at + 16 * PITCH)
        b, b_2 = matrices4(store, a_at + 8), matrices4(store, a_at + 8 + 16 * PITCH)
        d, e, minus, minus_2 = (
            (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO),
        )  # fmt: skip
        s, s_2, v, v_2 = (
            (NONE, NONE, NONE, NONE), (NONE, NONE, NONE, NONE), (NONE, NONE, NONE, NONE), (NONE, NONE, NONE, NONE),
        )  # fmt: skip
        if alone:
            d, e = _four(store, scale_at), _four(store, scale_at + ROWS)
            minus, minus_2 = _biased(d), _biased(e)
        elif scaled:
            s, v = load4(store, scale_at), load4(store, scale_at + ROWS)
            if halves:
                s_2, v_2 = load4(store, scale_at + 4 * ROWS), load4(store, scale_at + 5 * ROWS)
        for k in range(groups):
            if k * across < last:
                x, y = (ZERO, ZERO), (ZERO, ZERO)
                if alone:
                    x, y = _two(store, share_at + 8 * k), _two(store, share_at + inputs + 8 * k)
                w = matrices4(store, b_at + 8 * k * across * PITCH)
                unit_step(parts, totals, 8 * k, a, a_2, w[0], w[1], d, minus, s, s_2, x[0], x[1], begin)
                unit_step(parts, totals, 8 * k, b, b_2, w[2], w[3], e, minus_2, v, v_2, y[0], y[1], begin)

    return two_units


def _block_step(unit: Unit) -> Callable[..., Any]:
    """Make a device function: add a block's sums of 32 rows and 8 inputs, times their scales, to float32 sums."""
    folded, minima = not unit.scaled, unit.minima
    start = PATTERN if folded else NONE

    @cuda.jit(device=True)
    def one(total, d, minus, low, minimum, x, part):
        value = cuda.fma(bits_to_float(total), d, minus) if folded else F32(total) * d
        if minima:
            value = cuda.fma(minimum, -low, value)
        return cuda.fma(value, x, part)

    @cuda.jit(device=True)
    def sixteen(parts, totals, at, m, b, b_2, d, d_2, minus, minus_2, low, low_2, x, y):
        least = (ZERO, ZERO, ZERO, ZERO)
        if minima:
            least = mma_f16(m[0], m[1], m[2], m[3], b, b_2, ZERO, ZERO, ZERO, ZERO)
        parts[at] = one(totals[at], d, minus, low, least[0], x, parts[at])
        parts[at + 1] = one(totals[at + 1], d, minus, low, least[1], y, parts[at + 1])
        parts[at + 2] = one(totals[at + 2], d_2, minus_2, low_2, least[2], x, parts[at + 2])
        parts[at + 3] = one(totals[at + 3], d_2, minus_2, low_2, least[3], y, parts[at + 3])
        totals[at], totals[at + 1], totals[at + 2], totals[at + 3] = start, start, start, start

    @cuda.jit(device=True)
    def add(parts, totals, at, m, m_2, b, b_2, d, minus, low, x, y):
        sixteen(parts, totals, at, m, b, b_2, d[0], d[1], minus[0], minus[1], low[0], low[1], x, y)
        sixteen(parts, totals, at + 4, m_2, b, b_2, d[2], d[3], minus[2], minus[3], low[2], low[3], x, y)

    return add


GROUPS = 4
"""Groups of eight inputs per warp: more would leave fewer warps, for want of registers."""
REGISTERS, MORE_REGISTERS = 128, 224
"""Of a thread: as many as let a multiprocessor hold sixteen warps; and where it holds a block of eight anyway."""


def layout(fmt: str, inputs: int) -> Plan:
    """Return the plan of a format's blocks for tiles of ``inputs``."""
    return plan_of(UNITS[fmt], inputs, GROUPS)


def registers_for(fmt: str, tile: int) -> int:
    """Return the registers of a thread: REGISTERS, unless shared memory, or a format with two scales in a unit, which
    needs more, leaves one block of eight warps to a multiprocessor."""
    alone = UNITS[fmt].halves or 2 * shared_bytes(fmt, tile) > shared_limit()
    return MORE_REGISTERS if tile == TILE and alone else REGISTERS


@cache
def kernel(fmt: str, by_expert: bool, tile: int, registers: int) -> Any:
    """Make the kernel of a format; ``by_expert``: inputs by tiles of ``grouping``, else ``tile`` of them in order."""
    unit, plan = UNITS[fmt], layout(fmt, tile)
    copy_rows, decode_step = row_copier(unit, plan), decoder(unit, plan)
    remembered, find_inputs, copy_inputs = input_copier(unit, plan)
    convert_sums, block_step = sums_converter(plan), _block_step(unit)
    two_units = _units_of_a_warp(unit, plan)
    alone, scaled, minima = unit.per_block == 1, unit.scaled, unit.minima
    table = np.zeros(1, np.int32) if unit.table is None else unit.table
    table_words = 0 if unit.table is None else plan.raw_at
    threads, warps = plan.threads, plan.warps
    across, groups_each, stage = plan.across, plan.groups, plan.stage
    sums = 8 * groups_each
    held = 1 if alone else sums
    start = PATTERN if not scaled else NONE
    codes_at, inputs_at, scales_at, shares_at = plan.codes_at, plan.inputs_at, plan.scales_at, plan.shares_at
    d_at, low_at, minima_at, totals_at = plan.d_at, plan.low_at, plan.minima_at, plan.totals_at
    row_bits = (threads // ROWS).bit_length() - 1
    find = finder(by_expert, tile)

    @cuda.jit(device=True)
    def whole_block(store, parts, totals, lane, row_warp, column_warp, eights):
        """Add a block's sums of a warp's rows and inputs to the float32 sums."""
        last = I32(eights - column_warp)
        r, c, matrix, line = I32(lane >> 2), I32(lane & 3), I32(lane >> 3), I32(lane & 7)
        of_rows = I32(32 * row_warp + 4 * r)
        d = _four(store, d_at + of_rows)
        minus, low = _biased(d), (ZERO, ZERO, ZERO, ZERO)
        m, m_2, w = (NONE, NONE, NONE, NONE), (NONE, NONE, NONE, NONE), (NONE, NONE, NONE, NONE)
        if minima:
            low = _four(store, low_at + of_rows)
            m_at = I32(minima_at + (32 * row_warp + 8 * (matrix & 1) + line) * SHORT_PITCH + 4 * (matrix >> 1))
            m, m_2 = matrices4(store, m_at), matrices4(store, m_at + 16 * SHORT_PITCH)
        share_at = I32(shares_at + 8 * groups_each * column_warp + 2 * c)
        sums_of = I32(totals_at + (8 * column_warp + line) * SHORT_PITCH + 4 * (matrix & 1))
        for k in range(groups_each):
            if k * across < last:
                x = _two(store, share_at + 8 * k)
                if minima:
                    w = matrices4(store, sums_of + 8 * k * across * SHORT_PITCH)
                block_step(parts, totals, 8 * k, m, m_2, w[0], w[1], d, minus, low, x[0], x[1])

    @cuda.jit(device=True)
    def put_results(store, parts, lane, row_warp, column_warp, eights):
        """Store a warp's sums by input in shared memory."""
        last = I32(eights - column_warp)
        to = I32((8 * column_warp + 2 * (lane & 3)) * RESULT_PITCH + 32 * row_warp + (lane >> 2))
        for k in range(groups_each):
            if k * across < last:
                for i in range(8):
                    at = I32(to + (8 * k * across + (i & 1)) * RESULT_PITCH + 8 * (i >> 1))
                    store[at] = float_bits(parts[8 * k + i])

    @cuda.jit(device=True)
    def write_results(store, out, pairs_of, rows, row, warp, size):
        """Write the results of a block, adjacent rows at a time, from row ``row`` on."""
        for i in range(warp, size, warps):
            target = I64(element(pairs_of, i)) * rows + row
            at = I32(i * RESULT_PITCH + cuda.threadIdx.x)
            for k in range(ROWS // 32):
                if row + 32 * k < rows:
                    out[U64(target + 32 * k)] = bits_to_float(element(store, at + 32 * k))

    @cuda.jit(max_registers=registers)
    def multiply(
        raw, row_bytes, order, tile_experts, starts, sizes, groups, share, codes, scales, input_sums, out, rows, n,
        count,
    ):  # fmt: skip
        lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
        t = I32(warp * 32 + lane)
        store = cuda.shared.array(0, i32)
        pairs_of = cuda.shared.array(tile, i32)
        vectors_of = cuda.shared.array(tile, i32)
        first_row = I32(cuda.blockIdx.x * ROWS)
        matrix_id, size = find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, threads)
        if size == 0:
            return
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(t, table_words >> 2, threads):
                store4(store, 4 * i, looked_up[i >> 3])
        cuda.syncthreads()
        # inputs up to the next multiple of eight are copies of the last one. They are counted in eights: from
        # (size + 7) & ~7 numba-cuda makes debug information that NVVM refuses
        for i in range(t, tile, threads):
            vectors_of[i] = divide(pairs_of[i if i < size else I32(size - 1)], share)
        cuda.syncthreads()

        units, eights = I32(n >> 5), I32(divide(I32(size + 7), 8))
        matrix_start = I64(matrix_id) * rows * row_bytes
        row_start = matrix_start + I64(min(I32(first_row + (t >> row_bits)), I32(rows - 1))) * row_bytes
        copy_rows(store, raw, row_start, I32(0), I32(row_bytes), t)
        sources = cuda.local.array(remembered, i64)
        find_inputs(sources, vectors_of, n, t)
        copy_inputs(store, sources, vectors_of, codes, scales, input_sums, I32(0), units, I32(0), eights, t)
        copy_commit()

        parts = cuda.local.array(sums, f32)
        totals = cuda.local.array(held, i32)
        for i in range(sums):
            parts[i] = ZERO
        for i in range(held):
            totals[i] = start
        row_warp, column_warp = I32(warp & (ROW_WARPS - 1)), I32(warp >> 2)
        last = I32(eights - column_warp)  # a warp has group k of its own if k across < last
        r, c, matrix, line = I32(lane >> 2), I32(lane & 3), I32(lane >> 3), I32(lane & 7)
        of_rows = I32(32 * row_warp + 4 * r)
        of_inputs = I32(8 * groups_each * column_warp + 2 * c)
        from_rows = I32(codes_at + (32 * row_warp + 8 * (matrix & 1) + line) * PITCH + 4 * (matrix >> 1))
        from_inputs = I32(inputs_at + (8 * column_warp + line) * PITCH + 4 * matrix)
        # a shuffle keeps the compiler from computing these places anew in every step
        from_rows, from_inputs = lane_value(from_rows, lane), lane_value(from_inputs, lane)
        of_rows, of_inputs = lane_value(of_rows, lane), lane_value(of_inputs, lane)
        # four, so that they are one operand of all products
        begin = (PATTERN, PATTERN, PATTERN, PATTERN)
        if alone:
            begin = (lane_value(PATTERN, 0), lane_value(PATTERN, 1), lane_value(PATTERN, 2), lane_value(PATTERN, 3))
        offset, turn = I32(0), I32(0)
        for base in range(I32(0), units, I32(4)):
            copy_wait0()
            cuda.syncthreads()
            decode_step(store, base, units, first_row, I32(rows), I32(matrix_start) + offset, I32(row_bytes), t)
            second = (base & 4) != 0
            if minima and second:
                convert_sums(store, eights, t)
            cuda.syncthreads()
            if alone or second:
                offset = I32(offset + stage)
            if base + 4 < units:
                if alone or second:
                    copy_rows(store, raw, row_start, offset, I32(row_bytes), t)
                following, other = I32(base + 4), I32(1 - turn)
                copy_inputs(store, sources, vectors_of, codes, scales, input_sums, following, units, other, eights, t)
            copy_commit()
            a_at, b_at = I32(from_rows), I32(from_inputs + turn * (tile * PITCH))
            share_at = I32(shares_at + 4 * turn * tile + of_inputs)
            of_unit = I32(scales_at + of_rows)
            a_2, b_2, of_2, share_2 = I32(a_at + 16), I32(b_at + 16), I32(of_unit + 2 * ROWS), I32(share_at + 2 * tile)
            two_units(store, parts, totals, a_at, b_at, of_unit, share_at, last, begin)
            two_units(store, parts, totals, a_2, b_2, of_2, share_2, last, begin)
            if not alone and second:
                whole_block(store, parts, totals, I32(lane), row_warp, column_warp, eights)
            turn = I32(1 - turn)
        cuda.syncthreads()
        put_results(store, parts, lane, row_warp, column_warp, eights)
        cuda.syncthreads()
        write_results(store, out, pairs_of, rows, I32(first_row + lane), warp, size)

    return multiply, 4 * plan.words


def shared_bytes(fmt: str, tile: int) -> int:
    """Return the shared memory of a block."""
    return 4 * layout(fmt, tile).words + 8 * tile


def tile_for(fmt: str, rows: int, tokens: int, groups: int) -> int:
    """Return the inputs per block: WIDE_TILE where it has the registers and the shared memory, and its blocks keep the
    GPU busy."""
    blocks = -(-rows // ROWS) * -(-tokens // WIDE_TILE) * groups
    fits = not UNITS[fmt].halves and shared_bytes(fmt, WIDE_TILE) <= shared_limit()
    return WIDE_TILE if fits and tokens > TILE and 10 * blocks >= 9 * multiprocessors() else TILE


def _launch(stream: Any, grid: tuple[int, ...], fmt: str, by_expert: bool, tile: int, args: tuple[Any, ...]) -> None:
    run, shared = kernel(fmt, by_expert, tile, registers_for(fmt, tile))
    allow_shared(run, shared, args, 8 * tile)
    run[grid, (32, layout(fmt, tile).warps), stream, shared](*args)


def in_order(
    stream: Any, out: Any, inputs: tuple[Any, Any, Any], raw: Any, row_bytes: int, fmt: str, tokens: int, groups: int,
    rows: int, n: int,
) -> None:  # fmt: skip
    """Multiply packed inputs (tokens, groups, n) with the ``rows`` rows of their group -> out (tokens, groups,
    rows)."""
    unused = inputs[0]
    args = raw, row_bytes, unused, unused, unused, unused, groups, 1, *inputs, out, rows, n, tokens
    tile = tile_for(fmt, rows, tokens, groups)
    _launch(stream, (-(-rows // ROWS), -(-tokens // tile), groups), fmt, False, tile, args)


def by_expert(
    stream: Any, out: Any, inputs: tuple[Any, Any, Any], raw: Any, row_bytes: int, fmt: str, tiles: Tiles, share: int,
    rows: int, n: int,
) -> None:  # fmt: skip
    """Run every pair of ``tiles`` through its expert -> out (pairs, rows); ``share`` consecutive pairs have one
    input."""
    args = raw, row_bytes, *tiles[:4], 1, share, *inputs, out, rows, n, 0
    _launch(stream, (-(-rows // ROWS), tiles.most), fmt, True, TILE, args)
