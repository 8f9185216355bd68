"""Products of many float32 input vectors with matrices on tensor cores: prefill without integer inputs.

Inputs are cut into limbs of 16 bits (``limbs``), and products of limbs are exact. Weights are decoded once for a tile
of inputs, into shared memory:

    block formats   their integer codes as binary16, exact; a unit's scales multiply its sums of 32 (of 16 where it has
                    two), minima meet float32 sums of the inputs
    F16, BF16       as they are
    F32             three limbs of bfloat16; of the nine products the third limb's with the third is left out

A block multiplies ROWS rows with TILE inputs and walks along them two units at a time. A warp has 32 rows and, eight at
a time, all inputs. Every sum of 32 products begins at zero on the tensor cores, least limbs first, and joins float32
sums, because adding there cuts off what a float32 addition rounds.

Words lie in shared memory so that nothing meets in a bank: a row is eight pieces of 16 bytes, four a unit, each at its
number exclusive-or ``_key`` of the row. Lane c of the four that share a row takes piece c of a unit: the order in
which products of a sum are taken is free, as long as weights and inputs agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..formats import FORMATS
from ..formats.matrix import Matrix
from .grouping import TILE, Tiles
from .intrinsics import (
    add_halves,
    bits_to_float,
    copy16,
    copy_wait0,
    copy_commit,
    divide,
    element,
    load4,
    permute_bytes,
    put4,
    read2,
    shift_left,
    shift_right,
    store4,
    stream4,
)
from .limbs import BRAINS, HALVES, Kind, even_units, pack, three_brains
from .plain import VALUE_BYTES
from .shim import allow_shared, cuda, f32, i32
from .tiling import finder, put_rows
from .units import UNITS, straight

F32, I32, I64 = np.float32, np.int32, np.int64
ZERO = F32(0)

WARPS = 4
THREADS = 32 * WARPS
ROWS = 32 * WARPS
ROW_UNITS, ROW_MINIMA = 2 * ROWS, 4 * ROWS
TILE_SUMS = 4 * TILE
PART = 64
"""Sums of a lane: four rows and two inputs of every eight."""
TOP_BITS = I32(-0x7F7F7F80)
EXPONENT_10, MINUS_1152 = I32(0x64646464), I32(-0x1B7F1B80)
"""Bytes of the binary16 1024, whose last bits a code becomes, and twice the binary16 -1152."""


class Weights(NamedTuple):
    """How a format meets the tensor cores: limbs of weights and of inputs that are multiplied, in this order."""

    kind: Kind
    limbs: int
    pairs: Sequence[tuple[int, int]]


PLAIN = {
    "F16": Weights(HALVES, 1, ((0, 1), (0, 0))),
    "BF16": Weights(BRAINS, 1, ((0, 2), (0, 1), (0, 0))),
    "F32": Weights(BRAINS, 3, ((1, 2), (2, 1), (0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))),
}
CODES = PLAIN["F16"]


@cuda.jit(device=True)
def _key(row):
    """Rows that are read or written together differ in it."""
    return (row & 3) | ((row & 1) << 2)


@cuda.jit(device=True)
def _low(codes):
    """The two lower of four signed bytes, given plus 128, as binary16."""
    return add_halves(permute_bytes(codes, EXPONENT_10, 0x4140), MINUS_1152)


@cuda.jit(device=True)
def _high(codes):
    return add_halves(permute_bytes(codes, EXPONENT_10, 0x4342), MINUS_1152)


@cuda.jit(device=True)
def _put_codes(words, to, key, u, c, first, second):
    """Piece c of unit u: words c and c + 4 of a row's codes."""
    p, q = I32(first ^ TOP_BITS), I32(second ^ TOP_BITS)
    put4(words, to + 4 * ((4 * u + c) ^ key), _low(p), _high(p), _low(q), _high(q))


@cache
def _blocks(fmt: str) -> Callable[..., Any]:
    """``fill`` of a block format (``_filler``)."""
    unit = UNITS[fmt]
    decode, per_block, block_bytes, looks_up = unit.decode, unit.per_block, unit.block_bytes, unit.table is not None
    block_bits = per_block.bit_length() - 1

    @cuda.jit(device=True)
    def fill(raw, start, number, n, words, to, key, u):
        at = start + (number >> block_bits) * block_bytes
        j = number & (per_block - 1)
        if looks_up:
            q0, q1, q2, q3, q4, q5, q6, q7, f, g, m = decode(raw, at & ~3, at & 2, j, words)
        else:
            q0, q1, q2, q3, q4, q5, q6, q7, f, g, m = decode(raw, at & ~3, at & 2, j, raw)
        _put_codes(words, to, key, u, 0, q0, q4)
        _put_codes(words, to, key, u, 1, q1, q5)
        _put_codes(words, to, key, u, 2, q2, q6)
        _put_codes(words, to, key, u, 3, q3, q7)
        return f, g, m

    return fill


@cuda.jit(device=True)
def _pair16(raw, start, i, n):
    """Two weights of 16 bits from any place."""
    at, word = start + 2 * i, I32(0)
    if i < n:
        word = I32(I32(raw[at]) | I32(raw[at + 1]) << 8)
    if i + 1 < n:
        word = I32(word | I32(raw[at + 2]) << 16 | shift_left(I32(raw[at + 3]), 24))
    return word


@cuda.jit(device=True)
def _one32(raw, start, i, n):
    """A float32 from any place."""
    at = start + 4 * i
    if i >= n:
        return ZERO
    low = I32(raw[at]) | I32(raw[at + 1]) << 8 | I32(raw[at + 2]) << 16
    return bits_to_float(I32(low | shift_left(I32(raw[at + 3]), 24)))


@cache
def _values(fmt: str, aligned: bool) -> Callable[..., Any]:
    """``fill`` of plain numbers (``_filler``)."""
    wide = fmt == "F32"

    @cuda.jit(device=True)
    def four16(raw, start, i, n):
        """Weights i to i + 3 as two words."""
        return _pair16(raw, start, i, n), _pair16(raw, start, i + 2, n)

    @cuda.jit(device=True)
    def eight16(raw, start, i, n):
        """Weights i to i + 7 as four words, i a multiple of 8 and n as well."""
        if i < n:
            return stream4(raw, start + 2 * i)
        return I32(0), I32(0), I32(0), I32(0)

    @cuda.jit(device=True)
    def four32(raw, start, i, n):
        """Weights i to i + 3."""
        if aligned:
            if i >= n:
                return ZERO, ZERO, ZERO, ZERO
            a, b, c, d = stream4(raw, start + 4 * i)
            return bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)
        return (
            _one32(raw, start, i, n), _one32(raw, start, i + 1, n), _one32(raw, start, i + 2, n),
            _one32(raw, start, i + 3, n),
        )  # fmt: skip

    @cuda.jit(device=True)
    def fill(raw, start, number, n, words, to, key, u):
        first = 32 * number
        if wide:
            for c in range(4):
                a, b = four32(raw, start, first + 4 * c, n), four32(raw, start, first + 16 + 4 * c, n)
                p, q = three_brains(a[0], a[1]), three_brains(a[2], a[3])
                r, s = three_brains(b[0], b[1]), three_brains(b[2], b[3])
                place = to + 4 * ((4 * u + c) ^ key)
                put4(words, place, p[0], q[0], r[0], s[0])
                put4(words, place + 32 * ROWS, p[1], q[1], r[1], s[1])
                put4(words, place + 64 * ROWS, p[2], q[2], r[2], s[2])
        elif aligned:
            for c in range(0, 4, 2):
                a, b = eight16(raw, start, first + 4 * c, n), eight16(raw, start, first + 16 + 4 * c, n)
                put4(words, to + 4 * ((4 * u + c) ^ key), a[0], a[1], b[0], b[1])
                put4(words, to + 4 * ((4 * u + c + 1) ^ key), a[2], a[3], b[2], b[3])
        else:
            for c in range(4):
                p, q = four16(raw, start, first + 4 * c, n)
                r, s = four16(raw, start, first + 16 + 4 * c, n)
                put4(words, to + 4 * ((4 * u + c) ^ key), p, q, r, s)
        return ZERO, ZERO, I32(0)

    return fill


def _chain(kind: Kind, pairs: Sequence[tuple[int, int]], steps: Sequence[int]) -> Callable[..., Any]:
    """A device function (a, z, b, p0, p1, p2, p3): p plus the products of 16 rows with 8 inputs over ``steps`` of a
    unit, 0 and 1 for its halves. ``a`` and ``z`` are pieces of rows r and r + 8, ``b`` of an input: tuples of limbs,
    each four words."""
    mma = kind.mma
    order = [(i, j, step) for i, j in pairs for step in steps]

    def plus(before: Callable[..., Any] | None, i: int, j: int, low: int, high: int) -> Callable[..., Any]:
        @cuda.jit(device=True)
        def run(a, z, b, p0, p1, p2, p3):
            if before is not None:
                p0, p1, p2, p3 = before(a, z, b, p0, p1, p2, p3)
            return mma(a[i][low], z[i][low], a[i][high], z[i][high], b[j][low], b[j][high], p0, p1, p2, p3)

        return run

    made: Callable[..., Any] | None = None
    for i, j, step in order:
        made = plus(made, i, j, 2 * step, 2 * step + 1)
    assert made is not None
    return made


def _taker(limbs: int, apart: int) -> Callable[..., Any]:
    """A device function: a piece of every limb, which are ``apart`` words from one another."""

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
    """``Weights`` of a format, and its ``Unit`` if it has one."""
    return PLAIN.get(fmt, CODES), UNITS.get(fmt)


def dynamic_bytes(fmt: str) -> int:
    """Shared memory of a block that is asked for at launch: tables, weights, inputs."""
    made, unit = _format(fmt)
    tables = 0 if unit is None or unit.table is None else 32 * len(unit.table)
    return 4 * (tables + 32 * (ROWS * made.limbs + TILE * made.kind.limbs))


@cache
def kernel(fmt: str, by_expert: bool, aligned: bool) -> Any:
    """The kernel of a format; ``by_expert``: inputs by tiles of ``grouping``, else in order; ``aligned``: rows of plain
    numbers start at multiples of 16 bytes."""
    made, unit = _format(fmt)
    kind = made.kind
    fill = _values(fmt, aligned) if unit is None else _blocks(fmt)
    has_scales, minima = unit is not None, unit is not None and unit.minima
    halves = unit is not None and unit.halves
    table = np.zeros(1, np.int32) if unit is None or unit.table is None else unit.table
    table_words = 0 if unit is None or unit.table is None else 32 * len(table)
    input_limbs, scaled, weight_limbs = kind.limbs, kind.scaled, made.limbs
    pieces = 8 * input_limbs
    inputs_at = table_words + 32 * ROWS * weight_limbs
    whole, first_half, second_half = (_chain(kind, made.pairs, steps) for steps in ((0, 1), (0,), (1,)))
    of_rows, of_inputs = _taker(weight_limbs, 32 * ROWS), _taker(input_limbs, 32 * TILE)
    find = finder(by_expert)

    @cuda.jit(device=True)
    def sums_of(a, z, b, upper, lower, upper2, lower2):
        """Of 16 rows and 8 inputs over a unit, times the scales of its two rows here."""
        if halves:
            p0, p1, p2, p3 = first_half(a, z, b, ZERO, ZERO, ZERO, ZERO)
            q0, q1, q2, q3 = second_half(a, z, b, ZERO, ZERO, ZERO, ZERO)
            return (
                p0 * upper + q0 * upper2, p1 * upper + q1 * upper2, p2 * lower + q2 * lower2, p3 * lower + q3 * lower2,
            )  # fmt: skip
        p0, p1, p2, p3 = whole(a, z, b, ZERO, ZERO, ZERO, ZERO)
        if has_scales:
            return p0 * upper, p1 * upper, p2 * lower, p3 * lower
        return p0, p1, p2, p3

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
        which, size = find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, THREADS)
        if size == 0:
            return
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(t, table_words, THREADS):
                words[i] = looked_up[i >> 5]
        # inputs behind the last one stay zeros
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
        matrix = I64(which) * rows * row_bytes
        r, c = lane >> 2, lane & 3
        key = _key(r)
        there = (n + 31) >> 5
        for base in range(0, units, 2):
            for i in range(t, size * pieces, THREADS):
                token = divide(i, pieces)
                number = i - token * pieces
                u = divide(number, 4 * input_limbs)
                limb = (number >> 2) - u * input_limbs
                to = inputs_at + 32 * (limb * TILE + token) + 4 * ((4 * u + (number & 3)) ^ _key(token))
                copy16(words, to, limbs, (I64(vectors_of[token]) * units + base) * (16 * input_limbs) + 4 * number)
            copy_commit()
            for i in range(t, ROW_UNITS, THREADS):
                row, u = i >> 1, i & 1
                to = table_words + 32 * row
                f, g, m = ZERO, ZERO, I32(0)
                if first_row + row < rows and base + u < there:
                    start = matrix + I64(first_row + row) * row_bytes
                    f, g, m = fill(raw, start, base + u, n, words, to, _key(row), u)
                else:
                    for q in range(4 * u, 4 * u + 4):
                        for k in range(weight_limbs):
                            store4(words, to + 32 * ROWS * k + 4 * (q ^ _key(row)), I32(0))
                if has_scales:
                    factors[i] = f
                if halves:
                    seconds[i] = g
                if minima:
                    lows[2 * i] = g * F32(m & 255)
                    lows[2 * i + 1] = g * F32(shift_right(m, 8))
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
            top = 32 * warp + r
            for u in range(2):
                piece = 4 * ((4 * u + c) ^ key)
                at = table_words + 32 * top + piece
                a0, a1 = of_rows(words, at), of_rows(words, at + 256)
                a2, a3 = of_rows(words, at + 512), of_rows(words, at + 768)
                f0, f1, f2, f3, g0, g1, g2, g3 = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
                scale = 2 * top + u
                if has_scales:
                    f0, f1 = element(factors, scale), element(factors, scale + 16)
                    f2, f3 = element(factors, scale + 32), element(factors, scale + 48)
                if halves:
                    g0, g1 = element(seconds, scale), element(seconds, scale + 16)
                    g2, g3 = element(seconds, scale + 32), element(seconds, scale + 48)
                for k in range(8):
                    if 8 * k < size:
                        b = of_inputs(words, inputs_at + 32 * (8 * k + r) + piece)
                        p0, p1, p2, p3 = sums_of(a0, a1, b, f0, f1, g0, g1)
                        q0, q1, q2, q3 = sums_of(a2, a3, b, f2, f3, g2, g3)
                        if minima:
                            left = 4 * (8 * k + 2 * c) + 2 * u
                            xa, ya = element(totals_of, left), element(totals_of, left + 1)
                            xb, yb = element(totals_of, left + 4), element(totals_of, left + 5)
                            la, lb = element(lows, 2 * scale), element(lows, 2 * scale + 1)
                            p0 -= la * xa + lb * ya
                            p1 -= la * xb + lb * yb
                            la, lb = element(lows, 2 * scale + 32), element(lows, 2 * scale + 33)
                            p2 -= la * xa + lb * ya
                            p3 -= la * xb + lb * yb
                            la, lb = element(lows, 2 * scale + 64), element(lows, 2 * scale + 65)
                            q0 -= la * xa + lb * ya
                            q1 -= la * xb + lb * yb
                            la, lb = element(lows, 2 * scale + 96), element(lows, 2 * scale + 97)
                            q2 -= la * xa + lb * ya
                            q3 -= la * xb + lb * yb
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
                    put_rows(
                        out, pairs_of[i], rows, row + 16, parts[8 * k + 4 + h] * down, parts[8 * k + 6 + h] * down
                    )

    return multiply


FIXED_BYTES = 4 * (2 * ROW_UNITS + ROW_MINIMA + TILE_SUMS + 2 * TILE)


def _launch(
    stream: Any, grid: tuple[int, ...], made: Any, out: Any, x: Any, sums: Any, w: Matrix, tiles: tuple[Any, ...],
    vectors: int, groups: int, share: int, rows: int, count: int, scratch: Any,
) -> None:  # fmt: skip
    kind, unit, n = _format(w.fmt)[0].kind, UNITS.get(w.fmt), w.cols
    column, per_block = (straight, 1) if unit is None else (unit.column, unit.per_block)
    if column is straight:
        per_block = 1  # one packing kernel serves all of them
    limbs, scales = pack(stream, x, vectors, n, kind, column, per_block, scratch)
    row_bytes = FORMATS[w.fmt].row_bytes(n)
    args = w.data, row_bytes, *(tiles or (limbs,) * 4), groups, share, limbs, scales, sums, out, rows, n, even_units(n), count
    shared = dynamic_bytes(w.fmt)
    allow_shared(made, shared, args, FIXED_BYTES)
    made[grid, (32, WARPS), stream, shared](*args)


def _aligned(w: Matrix) -> bool:
    size = VALUE_BYTES.get(w.fmt, 0)
    return size > 0 and w.cols * size % 16 == 0


def in_order(
    stream: Any, out: Any, x: Any, sums: Any, w: Matrix, tokens: int, groups: int, *, scratch: Any
) -> None:  # fmt: skip
    """x (tokens, groups, n), each through the rows of its group -> out (tokens, rows). ``sums``: those of 16 inputs
    (``packing.pack_sums``) if the format has minima, else any array of float32."""
    rows = w.rows // groups
    made = kernel(w.fmt, False, _aligned(w))
    grid = -(-rows // ROWS), -(-tokens // TILE), groups
    _launch(stream, grid, made, out, x, sums, w, (), tokens * groups, groups, 1, rows, tokens, scratch)


def by_expert(
    stream: Any, out: Any, x: Any, sums: Any, w: Matrix, tiles: Tiles, vectors: int, share: int, *, scratch: Any
) -> None:  # fmt: skip
    """Every pair of ``tiles`` through its expert -> out (pairs, rows); ``share`` pairs in turn have one of the
    ``vectors`` inputs x."""
    made = kernel(w.fmt, True, _aligned(w))
    grid = -(-w.rows // ROWS), tiles.most
    _launch(stream, grid, made, out, x, sums, w, tiles[:4], vectors, 1, share, w.rows, 0, scratch)
