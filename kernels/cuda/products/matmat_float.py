"""GEMM of many float32 input vectors on tensor cores (prefill without integer inputs).

Inputs are split into limbs of 16 bits (``limbs``), and products of limbs are exact. Weights are decoded once per tile
of inputs, into shared memory:

    block formats   their integer codes as binary16, exact; a unit's scales multiply its sums of 32 (of 16 where it has
                    two), minima multiply float32 sums of the inputs
    F16, BF16       unchanged
    F32             three limbs of bfloat16; of the nine products the third limb's with the third is left out

A block multiplies ROWS rows with TILE inputs, two units of each row at a time. A warp has 32 rows and, eight at a time,
all inputs. Every sum of 32 products begins at zero on the tensor cores, least limbs first, and is added to float32 sums
outside, because tensor cores truncate where a float32 addition rounds.

The layout of weights in shared memory: ``filling``. A piece of inputs has those of words c and c + 4 of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...formats import FORMATS
from ...formats.matrix import Matrix
from ..driver.intrinsics import (
    bits_to_float,
    copy16,
    copy_commit,
    copy_wait0,
    divide,
    element,
    load4,
    read2,
    shift_right,
    store4,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32
from .decoding import straight
from .filling import LIMB, ROWS, codes_of_blocks, key_of, piece_at, plain_values
from .grouping import TILE, Tiles
from .limbs import BFLOATS, HALVES, Kind, even_units, pack
from .plain import VALUE_BYTES
from .tiling import finder, put_rows
from .units import UNITS

F32, I32, I64 = np.float32, np.int32, np.int64
ZERO = F32(0)

WARPS = ROWS // 32
THREADS = 32 * WARPS
ROW_UNITS, ROW_MINIMA = 2 * ROWS, 4 * ROWS
TILE_SUMS = 4 * TILE
PART = 64
"""Accumulators per lane: four rows and two inputs of every eight."""


class Weights(NamedTuple):
    """How a format uses the tensor cores: pairs of weight limb and input limb, in the order they are multiplied."""

    kind: Kind
    limbs: int
    pairs: Sequence[tuple[int, int]]


PLAIN = {
    "F16": Weights(HALVES, 1, ((0, 1), (0, 0))),
    "BF16": Weights(BFLOATS, 1, ((0, 2), (0, 1), (0, 0))),
    "F32": Weights(BFLOATS, 3, ((1, 2), (2, 1), (0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))),
}
CODES = PLAIN["F16"]


def _chain(kind: Kind, pairs: Sequence[tuple[int, int]], steps: Sequence[int]) -> Callable[..., Any]:
    """Make a device function (rows, more, b, p, q): p plus the products of 16 rows with 8 inputs over ``steps`` of a
    unit (0 and 1 for its halves), and q plus those of 16 more rows; interleaved, so that one need not wait for the
    other. ``rows`` and ``more`` are the weights' pieces of both halves, ``b`` is that of the inputs: tuples of limbs of
    four words."""
    mma = kind.mma

    def plus(before: Callable[..., Any] | None, i: int, j: int, step: int) -> Callable[..., Any]:
        low, high = 2 * step, 2 * step + 1

        @cuda.jit(device=True)
        def run(rows, more, b, p, q):
            if before is not None:
                p, q = before(rows, more, b, p, q)
            w, v = rows[step][i], more[step][i]
            p = mma(w[0], w[1], w[2], w[3], b[j][low], b[j][high], p[0], p[1], p[2], p[3])
            q = mma(v[0], v[1], v[2], v[3], b[j][low], b[j][high], q[0], q[1], q[2], q[3])
            return p, q

        return run

    chain: Callable[..., Any] | None = None
    for i, j in pairs:
        for step in steps:
            chain = plus(chain, i, j, step)
    assert chain is not None
    return chain


def _piece_loader(limbs: int, apart: int) -> Callable[..., Any]:
    """Make a device function that loads a piece of every limb; limbs are ``apart`` words from one another."""

    @cuda.jit(device=True)
    def one(words, at):
        return (load4(words, at),)

    @cuda.jit(device=True)
    def two(words, at):
        return load4(words, at), load4(words, at + apart)

    @cuda.jit(device=True)
    def three(words, at):
        return load4(words, at), load4(words, at + apart), load4(words, at + 2 * apart)

    return (one, two, three)[limbs - 1]


def _format(fmt: str) -> tuple[Weights, Any]:
    """Return ``Weights`` of a format, and its ``Unit`` if it has one."""
    return PLAIN.get(fmt, CODES), UNITS.get(fmt)


def dynamic_bytes(fmt: str) -> int:
    """Return the dynamic shared memory of a block: tables, weights, inputs."""
    weights, unit = _format(fmt)
    tables = 0 if unit is None or unit.table is None else 32 * len(unit.table)
    return 4 * (tables + 32 * (ROWS * weights.limbs + TILE * weights.kind.limbs))


@cache
def kernel(fmt: str, by_expert: bool, aligned: bool) -> Any:
    """Make the kernel of a format; ``by_expert``: inputs by tiles of ``grouping``, else in order; ``aligned``: rows of
    plain numbers start at multiples of 16 bytes."""
    limb_weights, unit = _format(fmt)
    kind = limb_weights.kind
    fill = plain_values(fmt, aligned) if unit is None else codes_of_blocks(fmt)
    has_scales, minima = unit is not None, unit is not None and unit.minima
    halves = unit is not None and unit.halves
    table = np.zeros(1, np.int32) if unit is None or unit.table is None else unit.table
    table_words = 0 if unit is None or unit.table is None else 32 * len(table)
    input_limbs, scaled, weight_limbs = kind.limbs, kind.scaled, limb_weights.limbs
    pieces = 8 * input_limbs
    at_once = 32 // pieces
    inputs_at = table_words + 32 * ROWS * weight_limbs
    whole, first_half, second_half = (_chain(kind, limb_weights.pairs, steps) for steps in ((0, 1), (0,), (1,)))
    of_rows, of_inputs = _piece_loader(weight_limbs, LIMB), _piece_loader(input_limbs, 32 * TILE)
    find = finder(by_expert)

    @cuda.jit(device=True)
    def sums_of(rows, more, b, f, g):
        """Return the sums of 32 rows and 8 inputs over a unit, times the scales of this lane's four rows."""
        zeros = ZERO, ZERO, ZERO, ZERO
        if halves:
            p, q = first_half(rows, more, b, zeros, zeros)
            v, w = second_half(rows, more, b, zeros, zeros)
            return (
                (p[0] * f[0] + v[0] * g[0], p[1] * f[0] + v[1] * g[0], p[2] * f[1] + v[2] * g[1],
                 p[3] * f[1] + v[3] * g[1]),
                (q[0] * f[2] + w[0] * g[2], q[1] * f[2] + w[1] * g[2], q[2] * f[3] + w[2] * g[3],
                 q[3] * f[3] + w[3] * g[3]),
            )  # fmt: skip
        p, q = whole(rows, more, b, zeros, zeros)
        if has_scales:
            p = p[0] * f[0], p[1] * f[0], p[2] * f[1], p[3] * f[1]
            q = q[0] * f[2], q[1] * f[2], q[2] * f[3], q[3] * f[3]
        return p, q

    @cuda.jit
    def multiply(
        raw, row_bytes, order, tile_experts, starts, sizes, groups, share, limbs, scales, sums, out, rows, n, units,
        count,
    ):  # fmt: skip
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        t = warp * 32 + lane
        words = cuda.shared.array(0, i32)
        factors = cuda.shared.array(ROW_UNITS, f32)
        seconds = cuda.shared.array(ROW_UNITS, f32)
        lows = cuda.shared.array(ROW_MINIMA, f32)
        totals_of = cuda.shared.array(TILE_SUMS, f32)
        pairs_of = cuda.shared.array(TILE, i32)
        vectors_of = cuda.shared.array(TILE, i32)
        matrix_id, size = find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, THREADS)
        if size == 0:
            return
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(t, table_words, THREADS):
                words[i] = looked_up[i >> 5]
        # inputs past the last one stay zero
        for i in range(t, TILE * pieces, THREADS):
            store4(words, inputs_at + 4 * i, I32(0))
        cuda.syncthreads()
        for i in range(t, size, THREADS):
            vectors_of[i] = divide(pairs_of[i], share)
        cuda.syncthreads()

        parts = cuda.local.array(PART, f32)
        for i in range(PART):
            parts[i] = ZERO
        first_row = I32(cuda.blockIdx.x * ROWS)
        matrix_start = I64(matrix_id) * rows * row_bytes
        r, c = lane >> 2, lane & 3
        row_units = (n + 31) >> 5
        # this lane copies one piece of every ``8 at_once``-th vector; these have the same key
        group = divide(lane, pieces)
        number = I32(lane - group * pieces)
        token_0 = I32(warp * at_once + group) if group < at_once else I32(TILE)
        u_copied = divide(number, 4 * input_limbs)
        limb = I32((number >> 2) - u_copied * input_limbs)
        copied = I32(inputs_at + 32 * (limb * TILE) + 4 * ((4 * u_copied + (number & 3)) ^ key_of(token_0)))
        for base in range(0, units, 2):
            token = token_0
            while token < size:
                piece = I32(vectors_of[token] * (units * (4 * input_limbs)) + (base * (4 * input_limbs) + number))
                copy16(words, I32(copied + 32 * token), limbs, I64(piece) * 4)
                token = I32(token + WARPS * at_once)
            copy_commit()
            # a thread fills rows r and r + 8 of 16
            number_2, u_filled = I32(base + (t & 1)), t & 1
            pair = t >> 1
            row_2 = I32(2 * pair - (pair & 7))
            start = matrix_start + I64(first_row + row_2) * row_bytes
            length = n if number_2 < row_units and first_row + row_2 < rows else 0
            length_2 = n if number_2 < row_units and first_row + row_2 + 8 < rows else 0
            to = I32(table_words + 64 * pair)
            (fa, ga, low_a, ma), (fb, gb, low_b, mb) = fill(
                raw, start, start + 8 * row_bytes, number_2, length, length_2, words, to, key_of(pair), u_filled
            )
            at = 2 * row_2 + u_filled
            if has_scales:
                factors[at] = fa
                factors[at + 16] = fb
            if halves:
                seconds[at] = ga
                seconds[at + 16] = gb
            if minima:
                lows[2 * at] = low_a * F32(ma & 255)
                lows[2 * at + 1] = low_a * F32(shift_right(ma, 8))
                lows[2 * at + 32] = low_b * F32(mb & 255)
                lows[2 * at + 33] = low_b * F32(shift_right(mb, 8))
            if minima:
                for i in range(t, 2 * TILE, THREADS):
                    token = i >> 1
                    first_sum, second_sum = ZERO, ZERO
                    if token < size:
                        vector = vectors_of[token]
                        bits, more = read2(sums, I64(vector) * (n >> 4) + 2 * (base + (i & 1)))
                        up = element(scales, 2 * vector)
                        first_sum, second_sum = bits_to_float(bits) * up, bits_to_float(more) * up
                    totals_of[2 * i] = first_sum
                    totals_of[2 * i + 1] = second_sum
            copy_wait0()
            cuda.syncthreads()
            top = I32(32 * warp + r)
            for u in range(2):
                key, from_rows = key_of(r), I32(table_words + 64 * (16 * warp + r))
                a0 = of_rows(words, piece_at(from_rows, key, 0, u, c))
                a1 = of_rows(words, piece_at(from_rows, key, 1, u, c))
                a2 = of_rows(words, piece_at(from_rows, key, 0, u, c) + 512)
                a3 = of_rows(words, piece_at(from_rows, key, 1, u, c) + 512)
                from_inputs = I32(inputs_at + 32 * r + 4 * ((4 * u + c) ^ key))
                f, g = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
                scale = I32(2 * top + u)
                if has_scales:
                    f = (
                        element(factors, scale), element(factors, scale + 16), element(factors, scale + 32),
                        element(factors, scale + 48),
                    )  # fmt: skip
                if halves:
                    g = (
                        element(seconds, scale), element(seconds, scale + 16), element(seconds, scale + 32),
                        element(seconds, scale + 48),
                    )  # fmt: skip
                la, lb = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
                if minima:
                    low = I32(2 * scale)
                    la = (
                        element(lows, low), element(lows, low + 32), element(lows, low + 64), element(lows, low + 96),
                    )  # fmt: skip
                    lb = (
                        element(lows, low + 1), element(lows, low + 33), element(lows, low + 65),
                        element(lows, low + 97),
                    )  # fmt: skip
                for k in range(8):
                    if 8 * k < size:
                        b = of_inputs(words, from_inputs + 256 * k)
                        (p0, p1, p2, p3), (q0, q1, q2, q3) = sums_of((a0, a1), (a2, a3), b, f, g)
                        if minima:
                            at_sums = 4 * (8 * k + 2 * c) + 2 * u
                            xa, ya = element(totals_of, at_sums), element(totals_of, at_sums + 1)
                            xb, yb = element(totals_of, at_sums + 4), element(totals_of, at_sums + 5)
                            p0 -= la[0] * xa + lb[0] * ya
                            p1 -= la[0] * xb + lb[0] * yb
                            p2 -= la[1] * xa + lb[1] * ya
                            p3 -= la[1] * xb + lb[1] * yb
                            q0 -= la[2] * xa + lb[2] * ya
                            q1 -= la[2] * xb + lb[2] * yb
                            q2 -= la[3] * xa + lb[3] * ya
                            q3 -= la[3] * xb + lb[3] * yb
                        parts[8 * k] += p0
                        parts[8 * k + 1] += p1
                        parts[8 * k + 2] += p2
                        parts[8 * k + 3] += p3
                        parts[8 * k + 4] += q0
                        parts[8 * k + 5] += q1
                        parts[8 * k + 6] += q2
                        parts[8 * k + 7] += q3
            cuda.syncthreads()
        row = first_row + 32 * warp + r
        for k in range(8):
            for h in range(2):
                i = 8 * k + 2 * c + h
                if i < size:
                    down = element(scales, 2 * vectors_of[i] + 1) if scaled else F32(1)
                    put_rows(out, pairs_of[i], rows, row, parts[8 * k + h] * down, parts[8 * k + 2 + h] * down)
                    put_rows(out, pairs_of[i], rows, row + 16, parts[8 * k + 4 + h] * down, parts[8 * k + 6 + h] * down)

    return multiply


FIXED_BYTES = 4 * (2 * ROW_UNITS + ROW_MINIMA + TILE_SUMS + 2 * TILE)


def _launch(
    stream: Any, grid: tuple[int, ...], compiled: Any, out: Any, x: Any, sums: Any, w: Matrix, tiles: tuple[Any, ...],
    vectors: int, groups: int, share: int, rows: int, count: int, scratch: Any,
) -> None:  # fmt: skip
    kind, unit, n = _format(w.fmt)[0].kind, UNITS.get(w.fmt), w.cols
    column, per_block = (straight, 1) if unit is None else (unit.column, unit.per_block)
    if column is straight:
        per_block = 1  # lets one packing kernel serve all these formats
    limbs, scales = pack(stream, x, vectors, n, kind, column, per_block, scratch)
    weights = w.data, FORMATS[w.fmt].row_bytes(n)
    where = *(tiles or (limbs,) * 4), groups, share  # any integers, where there are no tiles
    args = *weights, *where, limbs, scales, sums, out, rows, n, even_units(n), count
    shared = dynamic_bytes(w.fmt)
    allow_shared(compiled, shared, args, FIXED_BYTES)
    compiled[grid, (32, WARPS), stream, shared](*args)


def _aligned(w: Matrix) -> bool:
    size = VALUE_BYTES.get(w.fmt, 0)
    return size > 0 and w.cols * size % 16 == 0


def in_order(
    stream: Any, out: Any, x: Any, sums: Any, w: Matrix, tokens: int, groups: int, *, scratch: Any
) -> None:  # fmt: skip
    """Multiply x (tokens, groups, n) with the rows of its groups -> out (tokens, rows). ``sums``: those of 16 inputs
    (``packing.pack_sums``) if the format has minima, else any array of float32."""
    rows = w.rows // groups
    compiled = kernel(w.fmt, False, _aligned(w))
    grid = -(-rows // ROWS), -(-tokens // TILE), groups
    _launch(stream, grid, compiled, out, x, sums, w, (), tokens * groups, groups, 1, rows, tokens, scratch)


def by_expert(
    stream: Any, out: Any, x: Any, sums: Any, w: Matrix, tiles: Tiles, vectors: int, share: int, *, scratch: Any
) -> None:  # fmt: skip
    """Run every pair of ``tiles`` through its expert -> out (pairs, rows); ``share`` consecutive pairs have one of the
    ``vectors`` inputs x."""
    compiled = kernel(w.fmt, True, _aligned(w))
    grid = -(-w.rows // ROWS), tiles.most
    _launch(stream, grid, compiled, out, x, sums, w, tiles[:4], vectors, 1, share, w.rows, 0, scratch)
