"""GEMM of many input vectors with quantized matrices on tensor cores (prefill).

A block multiplies ROWS rows with TILE inputs, STEP weights of each row at a time. Its threads decode the rows' units
(``units``) into signed bytes in shared memory, beside the packed inputs; then its warps multiply 16 x 32 bytes of
weights with 32 x 8 of inputs at a time (mma.sync, int8 to int32: exact), and every such product of 32 is multiplied by
its scales, those of the row's unit and of the input's block, before it is added to float32 sums. So results equal those
of the mat-vec kernels up to the order in which the sums over units are added.

Formats with two scales in a unit (Q6_K) use the mat-vecs. Float inputs: ``matmat_float``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import divide, element, mma_s8, read4, shift_right
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32
from .grouping import TILE, Tiles
from .tiling import finder, put_rows
from .units import UNITS

F32, I32 = np.float32, np.int32
ZERO = F32(0)

ROWS, STEP = 64, 128
"""Rows per block, weights per step: four units."""
WARPS = 4
THREADS = 32 * WARPS
PITCH = STEP // 4 + 4
"""Words from one row of bytes to the next: lanes that read eight rows at once hit eight different groups of banks."""
CODES = ROWS * PITCH
INPUTS = TILE * PITCH
ROW_UNITS, TILE_UNITS = ROWS * 4, TILE * 4
ROW_MINIMA, TILE_SUMS = ROWS * 8, TILE * 8
PART = 4 * 8
"""Accumulators per lane: a warp has 16 rows and all 64 inputs, 8 products of 16 x 8."""


def has(fmt: str, act: str) -> bool:
    """Return whether there is such a kernel."""
    return fmt in UNITS and act == UNITS[fmt].activation and not UNITS[fmt].halves


@cuda.jit(device=True)
def _half_word(word, h):
    """Return half h of a word, an int16."""
    low = (word >> (16 * h)) & 0xFFFF
    return I32((low ^ 0x8000) - 0x8000)


@cache
def kernel(fmt: str, by_expert: bool) -> Any:
    """Make the kernel of a format; ``by_expert``: inputs by tiles of ``grouping``, else in order."""
    unit = UNITS[fmt]
    decode, column, per_block, block_bytes = unit.decode, unit.column, unit.per_block, unit.block_bytes
    minima = unit.minima
    block_bits = per_block.bit_length() - 1
    table = np.zeros(1, np.int32) if unit.table is None else unit.table
    table_words = 0 if unit.table is None else 32 * len(table)
    find = finder(by_expert)

    @cuda.jit
    def multiply(
        raw, row_bytes, order, tile_experts, starts, sizes, groups, share, codes, scales, sums, out, rows, n, count
    ):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        t = warp * 32 + lane
        tables = cuda.shared.array(0, i32)
        weights = cuda.shared.array(CODES, i32)
        inputs = cuda.shared.array(INPUTS, i32)
        factors = cuda.shared.array(ROW_UNITS, f32)
        shares = cuda.shared.array(TILE_UNITS, f32)
        lows = cuda.shared.array(ROW_MINIMA, f32)
        totals_of = cuda.shared.array(TILE_SUMS, f32)
        pairs_of = cuda.shared.array(TILE, i32)
        first_row = cuda.blockIdx.x * ROWS
        matrix_id, size = find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, THREADS)
        if size == 0:
            return
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(t, table_words, THREADS):
                tables[i] = looked_up[i >> 5]
        cuda.syncthreads()

        units = n >> 5
        parts = cuda.local.array(PART, f32)
        for i in range(PART):
            parts[i] = ZERO
        matrix_start = np.int64(matrix_id) * rows * row_bytes
        r, c = lane >> 2, lane & 3
        for base in range(0, units, 4):
            for i in range(t, ROW_UNITS, THREADS):
                row, number = i >> 2, base + (i & 3)
                q0, q1, q2, q3, q4, q5, q6, q7 = I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0)
                f, g, low, m = ZERO, ZERO, ZERO, I32(0)
                j = number & (per_block - 1)
                if first_row + row < rows and number < units:
                    at = matrix_start + (first_row + row) * row_bytes + (number >> block_bits) * block_bytes
                    if table_words > 0:
                        q0, q1, q2, q3, q4, q5, q6, q7, f, g, low, m = decode(raw, at & ~3, at & 3, j, tables)
                    else:
                        q0, q1, q2, q3, q4, q5, q6, q7, f, g, low, m = decode(raw, at & ~3, at & 3, j, raw)
                # place the unit's words among those of the step, which is half a block of 256
                to = row * PITCH
                before = 32 * (number - j)
                weights[to + (((before + column(j, 0)) >> 2) & 31)] = q0
                weights[to + (((before + column(j, 1)) >> 2) & 31)] = q1
                weights[to + (((before + column(j, 2)) >> 2) & 31)] = q2
                weights[to + (((before + column(j, 3)) >> 2) & 31)] = q3
                weights[to + (((before + column(j, 4)) >> 2) & 31)] = q4
                weights[to + (((before + column(j, 5)) >> 2) & 31)] = q5
                weights[to + (((before + column(j, 6)) >> 2) & 31)] = q6
                weights[to + (((before + column(j, 7)) >> 2) & 31)] = q7
                factors[i] = f
                if minima:
                    lows[2 * i] = low * F32(m & 255)
                    lows[2 * i + 1] = low * F32(shift_right(m, 8))
            for i in range(t, 4 * ((size + 7) & ~7), THREADS):
                number = base + (i & 3)
                pair = pairs_of[i >> 2]
                to = (i >> 2) * PITCH + 8 * (i & 3)
                a, b, scale = (I32(0), I32(0), I32(0), I32(0)), (I32(0), I32(0), I32(0), I32(0)), ZERO
                if pair >= 0 and number < units:
                    vector = np.int64(divide(pair, share))
                    a = read4(codes, vector * (n >> 2) + 8 * number)
                    b = read4(codes, vector * (n >> 2) + 8 * number + 4)
                    scale = element(scales, vector * (units >> block_bits) + (number >> block_bits))
                    if minima:
                        two = element(sums, vector * units + number)
                        totals_of[2 * i] = scale * F32(_half_word(two, 0))
                        totals_of[2 * i + 1] = scale * F32(_half_word(two, 1))
                elif minima:
                    totals_of[2 * i] = ZERO
                    totals_of[2 * i + 1] = ZERO
                inputs[to], inputs[to + 1], inputs[to + 2], inputs[to + 3] = a[0], a[1], a[2], a[3]
                inputs[to + 4], inputs[to + 5], inputs[to + 6], inputs[to + 7] = b[0], b[1], b[2], b[3]
                shares[i] = scale
            cuda.syncthreads()
            upper = 16 * warp + r
            for u in range(4):
                at = upper * PITCH + 8 * u + c
                a0, a1 = element(weights, at), element(weights, at + 8 * PITCH)
                a2, a3 = element(weights, at + 4), element(weights, at + 8 * PITCH + 4)
                fa, fb = element(factors, 4 * upper + u), element(factors, 4 * (upper + 8) + u)
                la, ma, lb, mb = ZERO, ZERO, ZERO, ZERO
                if minima:
                    la, ma = element(lows, 8 * upper + 2 * u), element(lows, 8 * upper + 2 * u + 1)
                    lb, mb = element(lows, 8 * (upper + 8) + 2 * u), element(lows, 8 * (upper + 8) + 2 * u + 1)
                for k in range(8):
                    if 8 * k < size:
                        to = (8 * k + r) * PITCH + 8 * u + c
                        p0, p1, p2, p3 = mma_s8(
                            a0, a1, a2, a3, element(inputs, to), element(inputs, to + 4), I32(0), I32(0), I32(0), I32(0)
                        )
                        token = 8 * k + 2 * c
                        sa, sb = element(shares, 4 * token + u), element(shares, 4 * token + 4 + u)
                        parts[4 * k] += F32(p0) * (fa * sa)
                        parts[4 * k + 1] += F32(p1) * (fa * sb)
                        parts[4 * k + 2] += F32(p2) * (fb * sa)
                        parts[4 * k + 3] += F32(p3) * (fb * sb)
                        if minima:
                            xa, ya = element(totals_of, 8 * token + 2 * u), element(totals_of, 8 * token + 2 * u + 1)
                            xb, yb = (
                                element(totals_of, 8 * token + 8 + 2 * u),
                                element(totals_of, 8 * token + 9 + 2 * u),
                            )
                            parts[4 * k] -= la * xa + ma * ya
                            parts[4 * k + 1] -= la * xb + ma * yb
                            parts[4 * k + 2] -= lb * xa + mb * ya
                            parts[4 * k + 3] -= lb * xb + mb * yb
            cuda.syncthreads()
        row = first_row + 16 * warp + r
        for k in range(8):
            for h in range(2):
                put_rows(out, pairs_of[8 * k + 2 * c + h], rows, row, parts[4 * k + h], parts[4 * k + 2 + h])

    return multiply, 4 * table_words


FIXED_BYTES = 4 * (CODES + INPUTS + ROW_UNITS + TILE_UNITS + ROW_MINIMA + TILE_SUMS + TILE)


def in_order(
    stream: Any, out: Any, inputs: tuple[Any, Any, Any], raw: Any, row_bytes: int, fmt: str, tokens: int, groups: int,
    rows: int, n: int,
) -> None:  # fmt: skip
    """Multiply packed inputs (tokens, groups, n) with the ``rows`` rows of their group -> out (tokens, groups,
    rows)."""
    run, shared = kernel(fmt, False)
    unused = inputs[0]
    numbers = groups, 1
    args = raw, row_bytes, unused, unused, unused, unused, *numbers, *inputs, out, rows, n, tokens
    allow_shared(run, shared, args, FIXED_BYTES)
    grid = -(-rows // ROWS), -(-tokens // TILE), groups
    run[grid, (32, WARPS), stream, shared](*args)


def by_expert(
    stream: Any, out: Any, inputs: tuple[Any, Any, Any], raw: Any, row_bytes: int, fmt: str, tiles: Tiles, share: int,
    rows: int, n: int,
) -> None:  # fmt: skip
    """Run every pair of ``tiles`` through its expert -> out (pairs, rows); ``share`` consecutive pairs have one
    input."""
    run, shared = kernel(fmt, True)
    args = raw, row_bytes, *tiles[:4], 1, share, *inputs, out, rows, n, 0
    allow_shared(run, shared, args, FIXED_BYTES)
    run[(-(-rows // ROWS), tiles.most), (32, WARPS), stream, shared](*args)
