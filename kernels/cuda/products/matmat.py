"""GEMM of many input vectors on tensor cores (prefill).

Inputs are 16-bit limbs (``limbs``): one for integer codes, exact, whose scales multiply a unit's sums; two or three for
float32. Products of limbs are exact. Weights are decoded once per tile of inputs, into shared memory (``filling``):

    block formats   their integer codes as binary16, exact; a unit's scales multiply its sums of 32 (of 16 where it has
                    two), minima multiply the sums of 16 inputs
    F16, BF16       unchanged
    F32             three limbs of bfloat16; of the nine products the third limb's with the third is left out

A block multiplies ROWS rows with a tile of inputs, two units of each row at a time: TILE inputs of one expert
(``grouping``) or of one group, in order. A warp has 32 rows and, eight at a time, all inputs. Every sum of 32 products
begins at zero on the tensor cores, least limbs first, and is added to float32 sums outside, because tensor cores
truncate where a float32 addition rounds; sums of codes are exact. A piece of inputs has those of words c and c + 4 of a
unit.
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
    shift_left,
    shift_right,
    store4,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32
from .filling import LIMB, ROWS, codes_of_blocks, key_of, piece_at, plain_values
from .grouping import TILE
from .layouts import table_words
from .limbs import BFLOATS, CODES, HALVES, Kind, even_units
from .plain import VALUE_BYTES
from .units import UNITS

F32, I32, I64 = np.float32, np.int32, np.int64
ZERO = F32(0)

WARPS = ROWS // 32
THREADS = 32 * WARPS
ROW_UNITS, ROW_MINIMA = 2 * ROWS, 4 * ROWS
TILE_UNITS, TILE_SUMS = 2 * TILE, 4 * TILE
PART = 64
"""Accumulators per lane: four rows and two inputs of every eight."""


class Weights(NamedTuple):
    """How products with a format use the tensor cores.

    kind   how inputs are split into limbs
    limbs  limbs per weight
    pairs  (weight limb, input limb) to be multiplied, in this order
    """

    kind: Kind
    limbs: int
    pairs: Sequence[tuple[int, int]]


PLAIN = {
    "F16": Weights(HALVES, 1, ((0, 1), (0, 0))),
    "BF16": Weights(BFLOATS, 1, ((0, 2), (0, 1), (0, 0))),
    "F32": Weights(BFLOATS, 3, ((1, 2), (2, 1), (0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))),
}
FLOATS_BY_CODES, CODES_BY_CODES = PLAIN["F16"], Weights(CODES, 1, ((0, 0),))
SCALE_BITS = {"a8": 0, "q8k": 3}
"""Logarithm to base 2 of the number of units (32 inputs) that share a scale, by rounding of the inputs."""


def _chain(kind: Kind, pairs: Sequence[tuple[int, int]], steps: Sequence[int]) -> Callable[..., Any]:
    """Make a device function (rows, more, b, p, q): it returns p plus the products of 16 rows of weights with 8 inputs,
    and q plus those of 16 more rows; the instructions of both alternate, so that one need not wait for the other.

    rows, more, b: the pieces of weights and inputs, as tuples of limbs of four words
    steps: which halves of a unit to multiply, 0 and 1
    """
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
    """Make a device function that loads a piece of each of ``limbs`` limbs, which are ``apart`` words from each
    other."""

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


def weights_of(fmt: str, act: str) -> Weights:
    """Return how weights of format ``fmt`` are multiplied by inputs with rounding ``act``."""
    return CODES_BY_CODES if act != "float" else PLAIN.get(fmt, FLOATS_BY_CODES)


def dynamic_bytes(fmt: str, act: str) -> int:
    """Return the bytes of dynamic shared memory that a block needs: for tables, weights and inputs."""
    weights = weights_of(fmt, act)
    tables = table_words(UNITS[fmt]) if fmt in UNITS else 0
    return 4 * (tables + 32 * (ROWS * weights.limbs + TILE * weights.kind.limbs))


@cache
def kernel(fmt: str, act: str, by_expert: bool, aligned: bool) -> Any:
    """Make the kernel for a format and input rounding.

    by_expert: whether inputs come in tiles of one expert each (``grouping``) rather than in order
    aligned: whether rows of a format without blocks start at multiples of 16 bytes
    """
    limb_weights, unit = weights_of(fmt, act), UNITS.get(fmt)
    kind, coded, scale_bits = limb_weights.kind, act != "float", SCALE_BITS.get(act, 0)
    fill = plain_values(fmt, aligned) if unit is None else codes_of_blocks(fmt)
    has_scales, minima = unit is not None, unit is not None and unit.minima
    halves = unit is not None and unit.halves
    table = np.zeros(1, np.int32) if unit is None or unit.table is None else unit.table
    words_of_table = 0 if unit is None else table_words(unit)
    input_limbs, scaled, weight_limbs = kind.limbs, kind.scaled, limb_weights.limbs
    pieces = 8 * input_limbs
    at_once = 32 // pieces
    inputs_at = words_of_table + 32 * ROWS * weight_limbs
    whole, first_half, second_half = (_chain(kind, limb_weights.pairs, steps) for steps in ((0, 1), (0,), (1,)))
    of_rows, of_inputs = _piece_loader(weight_limbs, LIMB), _piece_loader(input_limbs, 32 * TILE)

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
        shares = cuda.shared.array(TILE_UNITS, f32)
        tile = cuda.blockIdx.y
        matrix_id, begin = I32(cuda.blockIdx.z), I32(tile * TILE)
        size = I32(min(TILE, count - begin))
        if by_expert:
            matrix_id, begin, size = tile_experts[tile], starts[tile], sizes[tile]
        if size == 0:
            return
        for i in range(t, size, THREADS):
            pairs_of[i] = order[begin + i] if by_expert else I32((begin + i) * groups + matrix_id)
        if words_of_table > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(t, words_of_table, THREADS):
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
            to = I32(words_of_table + 64 * pair)
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
            if minima or coded:
                for i in range(t, TILE_UNITS, THREADS):
                    token, its_unit = i >> 1, base + (i & 1)
                    first_sum, second_sum, share_of = ZERO, ZERO, ZERO
                    if token < size and its_unit < row_units:
                        unit_of_all = I64(vectors_of[token]) * row_units + its_unit
                        if coded:
                            share_of = element(scales, unit_of_all >> scale_bits)
                            if minima:
                                word = I32(element(sums, unit_of_all))
                                first_sum, second_sum = F32(I32(shift_left(word, 16) >> 16)), F32(I32(word >> 16))
                        else:
                            bits, more = read2(sums, 2 * unit_of_all)
                            up = element(scales, 2 * vectors_of[token])
                            first_sum, second_sum = bits_to_float(bits) * up, bits_to_float(more) * up
                    totals_of[2 * i] = first_sum
                    totals_of[2 * i + 1] = second_sum
                    shares[i] = share_of
            copy_wait0()
            cuda.syncthreads()
            top = I32(32 * warp + r)
            for u in range(2):
                key, from_rows = key_of(r), I32(words_of_table + 64 * (16 * warp + r))
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
                        if coded:
                            x, y = element(shares, 16 * k + 4 * c + u), element(shares, 16 * k + 4 * c + 2 + u)
                            p0, p1, p2, p3 = p0 * x, p1 * y, p2 * x, p3 * y
                            q0, q1, q2, q3 = q0 * x, q1 * y, q2 * x, q3 * y
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
                    target = I64(pairs_of[i]) * rows + row
                    for j in range(4):
                        if row + 8 * j < rows:
                            out[target + 8 * j] = parts[8 * k + 2 * j + h] * down

    return multiply


FIXED_BYTES = 4 * (2 * ROW_UNITS + ROW_MINIMA + TILE_SUMS + 2 * TILE + TILE_UNITS)


def multiply(
    stream: Any, out: Any, limbs: Any, scales: Any, sums: Any, order: Any, tile_experts: Any, starts: Any, sizes: Any,
    w: Matrix, act: str, tokens: int, groups: int, share: int, by_expert: bool,
) -> None:  # fmt: skip
    """Multiply inputs (tokens, groups, n), packed by ``limbs``, by the rows of their group -> out (tokens, groups,
    rows). If ``by_expert``, multiply the input of each (token, expert) pair in the tiles of ``grouping`` by its
    expert's matrix -> out (pairs, rows); ``share`` consecutive pairs have the same input. ``sums`` are those of every
    16 inputs or codes, which are read if the format has minima."""
    rows, n, size = w.rows // groups, w.cols, VALUE_BYTES.get(w.fmt, 0)
    compiled = kernel(w.fmt, act, by_expert, size > 0 and n * size % 16 == 0)
    tiles = len(sizes) if by_expert else -(-tokens // TILE)
    args = (
        w.data, FORMATS[w.fmt].row_bytes(n), order, tile_experts, starts, sizes, groups, share, limbs, scales, sums,
        out, rows, n, even_units(n), tokens,
    )  # fmt: skip
    shared = dynamic_bytes(w.fmt, act)
    allow_shared(compiled, shared, args, FIXED_BYTES)
    compiled[(-(-rows // ROWS), tiles, groups), (32, WARPS), stream, shared](*args)
