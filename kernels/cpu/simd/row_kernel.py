"""The common signature of all row kernels, and the loop over rows and blocks that almost all share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import njit, types

from ...formats.apart import Apart
from .helpers import AHEAD, load_int, prefetch, prefetch_lines, store_float
from .vec import JIT, F32x8, F32x16, F32x32, Float, Int, Many, Vec, inline, several

COUNTS = (1, 2, 4)
"""Numbers of inputs for which a row kernel is compiled: it decodes a row once and multiplies it by all of them."""

EVERY_COUNT = (1, 2, 3, 4)
"""What the format uses instead that most of the bytes read for a token are in; for others a kernel for three inputs is
not worth while."""

TWO_AT_MOST = (1, 2)
"""What kernels use instead whose running sums of four inputs do not fit into registers, and whose decoding is cheap."""


class RowKernel(NamedTuple):
    """The functions that multiply raw rows of one weight format by inputs with one rounding. All addresses are int64.

    packed_bytes(n) -> int
        bytes of the buffer for an input of n values once packed
    pack(x, n, buffer)
        pack the n float32 at ``x`` into the buffer: rounded, in the order in which the weights are decoded
    rows[count](weights, first, last, row_bytes, n, table), for each of COUNTS, EVERY_COUNT or TWO_AT_MOST
        float32 out[first:last] = rows first .. last-1 of the matrix at ``weights`` times the packed vector, for each of
        the ``count`` pairs of int64 addresses (buffer, out) at ``table``; never reads beyond the last byte of row
        last-1, nor before the first of row ``first``. An input's result has the same bits for every count.

    The buffers and outs need no alignment (64 bytes is faster). n is a multiple of 32 for Q8_0 and Q4_0, of 256 for the
    K and IQ formats, any positive number for F16, BF16 and F32. All are ``@njit(nogil=True)`` and never call into
    Python, so other compiled functions can call them, and threads run them in parallel.
    """

    pack: Any
    rows: dict[int, Any]
    packed_bytes: Any


class Lanes(NamedTuple):
    """The running sums of a row: their type, and inlined functions that zero them and add up all lanes."""

    kind: types.Type
    zero: Any
    total: Any


def _lanes(kind: Vec) -> Lanes:
    return Lanes(kind, inline(kind)(lambda k: k.zero(kind)), inline(Float, kind)(lambda k, sums: k.hsum(sums)))


def _pair(kind: Vec) -> Lanes:
    """Make two alternating accumulators, so that one multiply-add need not wait for the other."""
    both = types.UniTuple(kind, 2)
    total = inline(Float, both)(lambda k, sums: k.hsum(operator.add(*k.members(sums))))
    return Lanes(both, inline(both)(lambda k: (k.zero(kind), k.zero(kind))), total)


LANES_8, LANES_16, LANES_32 = _lanes(F32x8), _lanes(F32x16), _lanes(F32x32)
PAIR_16, PAIR_32 = _pair(F32x16), _pair(F32x32)


class Part(NamedTuple):
    """What a row kernel does in one step along a row.

    inputs        number of inputs, a power of two
    add           inlined function (sums, weights, x) that adds their products to the running sums
    weight_bytes  bytes of their weights in the row
    packed_bytes  bytes of the packed inputs
    """

    inputs: int
    add: Any
    weight_bytes: int
    packed_bytes: int


class Inputs(NamedTuple):
    """Inlined functions on the addresses of several inputs, which are UniTuples of int64.

    buffers(table), outs(table)  the addresses in a table of pairs
    forward(addresses, bytes)    each of them, ``bytes`` further on
    store(addresses, floats)     store a float at each
    """

    buffers: Any
    outs: Any
    forward: Any
    store: Any


def _inputs(count: int) -> Inputs:
    kind = types.UniTuple(Int, count)

    def column(offset: int) -> Any:
        return inline(kind, Int)(lambda k, table: tuple(k.load(Int, table + (16 * i + offset)) for i in range(count)))

    forward = inline(kind, kind, Int)(lambda k, places, by: tuple((Many(k.members(places)) + by).parts))
    return Inputs(column(0), column(8), forward, several(store_float, count))


def for_counts(make: Callable[[int, Inputs], Any], counts: Sequence[int] = COUNTS) -> dict[int, Any]:
    """Make ``rows`` of a RowKernel from ``make(count, inputs)``."""
    return {count: make(count, _inputs(count)) for count in counts}


def for_any_count(rows: dict[int, Any]) -> Any:
    """Make ``rows(weights, first, last, row_bytes, n, table, count)`` for any number of inputs out of the functions for
    fixed numbers."""
    one, two, most = rows[1], rows[2], rows[max(rows)]
    at_once = max(rows)
    three_at_once, three = 3 in rows, rows.get(3, one)

    @njit(**JIT)
    def rows_for_any(weights, first, last, row_bytes, n, table, count):
        left = count
        while left >= at_once:
            most(weights, first, last, row_bytes, n, table)
            table += 16 * at_once
            left -= at_once
        if three_at_once and left == 3:
            three(weights, first, last, row_bytes, n, table)
            return
        if left & 2:
            two(weights, first, last, row_bytes, n, table)
            table += 32
        if left & 1:
            one(weights, first, last, row_bytes, n, table)

    return rows_for_any


def several_adds(add: Any, count: int) -> Any:
    """Make ``add(sums, weights, scales, x)`` for several inputs, which have their own ``sums`` and ``x``.

    It may take no ``scales``.
    """
    kind = add.result
    if len(add.arguments) == 3:
        return several(inline(kind, kind, Int, Int, Int)(lambda k, a, w, _, x: add.emitter(k, a, w, x)), count, (1, 2))
    return several(add, count, (1, 2))


def make_rows(
    lanes: Lanes,
    lines: int,
    main: Part,
    *rest: Part,
    counts: Sequence[int] = COUNTS,
    single: Part | None = None,
    apart: Apart | None = None,
    twice: bool = False,
) -> dict[int, Any]:
    """Make ``rows`` of a RowKernel from steps: ``main`` as often as it fits, then each step of ``rest`` (at most two)
    if its number of inputs is a bit of n, then, after adding up the lanes, ``single`` for each input that is left.

    lines   cache lines of weights that each main step prefetches
    counts  numbers of inputs to make a function for
    apart   layout if codes and scales are stored apart: ``weights`` is then the address of their two addresses
    twice   whether to prefetch into L2 and, later, into L1
    """
    nothing = Part(0, inline(lanes.kind, lanes.kind, Int, Int)(lambda k, sums, weights, x: sums), 0, 0)
    parts = main, *(*rest, nothing, nothing)[:2]
    (size, _, weights_0, packed_0), (bit_1, _, weights_1, packed_1), (bit_2, _, weights_2, packed_2) = parts
    one = single or Part(0, inline(Float, Float, Int, Int)(lambda k, total, weights, x: total), 0, 0)
    shift, weight_bytes, singles = (
        size.bit_length() - 1,
        one.weight_bytes,
        (bit_2 or bit_1 or size) - 1 if single else 0,
    )
    high, block = (apart.high, apart.codes.block_elems) if apart else (0, 1)
    scales_0, scales_1 = size // block, bit_1 // block
    fetch_ahead = prefetch_lines(lines, twice)

    def make(count: int, inputs: Inputs) -> Any:
        buffers, outs, forward, store = inputs
        zero, total = several(lanes.zero, count), several(lanes.total, count)
        add, add_1, add_2, add_single = (several_adds(part.add, count) for part in (*parts, one))

        @njit(**JIT)
        def rows(weights, first, last, row_bytes, n, table):
            start, out, blocks = buffers(table), outs(table), n // block
            codes, all_scales = (load_int(weights), load_int(weights + 8)) if high else (weights, 0)
            for row in range(first, last):
                w, x, sums = codes + row * row_bytes, start, zero()
                scales = all_scales + row // high * blocks if high else 0
                if high == 1:
                    for line in range(0, blocks, 64):
                        prefetch(scales + AHEAD // 16 + line)
                for _ in range(n >> shift):
                    fetch_ahead(w)
                    sums = add(sums, w, scales, x)
                    w += weights_0
                    scales += scales_0
                    x = forward(x, packed_0)
                if n & bit_1:
                    sums = add_1(sums, w, scales, x)
                    w += weights_1
                    scales += scales_1
                    x = forward(x, packed_1)
                if n & bit_2:
                    sums = add_2(sums, w, scales, x)
                    w += weights_2
                    x = forward(x, packed_2)
                result = total(sums)
                for _ in range(n & singles):
                    result = add_single(result, w, scales, x)
                    w += weight_bytes
                    x = forward(x, 4)
                store(forward(out, 4 * row), result)

        return rows

    return for_counts(make, counts)


def pairs_of_256(two_blocks: Any, block_bytes: int, packed: int) -> tuple[Part, Part]:
    """Make the steps for two blocks of 256 weights, and for a last single one, which is passed twice, from
    ``two_blocks(k, total, first, second, x)``.

    packed: bytes of the packed inputs of two blocks
    """
    kinds = F32x16, F32x16, Int, Int
    two = inline(*kinds)(lambda k, total, w, x: two_blocks(k, total, w, w + block_bytes, x))
    last = inline(*kinds)(lambda k, total, w, x: two_blocks(k, total, w, w, x))
    return Part(512, two, 2 * block_bytes, packed), Part(256, last, block_bytes, packed)


def rows_of_256(
    lanes: Lanes, lines: int, add: Any, block_bytes: int, pack: Any, packed: int, counts: Sequence[int] = COUNTS
) -> RowKernel:
    """Make the RowKernel of a format with blocks of 256 weights: ``add`` multiplies one block by ``packed`` bytes of
    packed inputs."""
    rows = make_rows(lanes, lines, Part(256, add, block_bytes, packed), counts=counts)
    return RowKernel(pack, rows, records(256, packed))


def records(inputs: int, size: int) -> Any:
    """Make ``packed_bytes`` of a RowKernel: ``size`` bytes for every ``inputs`` inputs, rounded up."""

    @njit(**JIT)
    def packed_bytes(n):
        return (n + inputs - 1) // inputs * size

    return packed_bytes
