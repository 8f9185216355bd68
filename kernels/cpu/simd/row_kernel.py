"""The common signature of all row kernels, and the loop over rows and blocks that the block formats share."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit, types

from .helpers import AHEAD, prefetch, store_float
from .vec import JIT, F32x8, F32x16, F32x32, Float, Vec, inline


class RowKernel(NamedTuple):
    """Mat-vec on raw rows of one weight format, for one activation rounding. All addresses are int64.

    packed_bytes(n) -> int
        size of the activation buffer for n inputs
    pack(x, n, buffer)
        n float32 at ``x`` -> the buffer: rounded by the activation mode, in the order of the weight decoder
    rows(weights, first, last, row_bytes, n, buffer, out)
        float32 out[first:last] = rows first .. last-1 of the matrix at ``weights`` times the packed vector; never reads
        beyond the last byte of row last-1, nor before the first of row ``first``

    The buffer and out need no alignment (64 bytes is faster). n is a multiple of 32 for Q8_0 and Q4_0, of 256 for the K
    and IQ formats, any positive number for F16, BF16 and F32. All three are ``@njit(nogil=True)`` and never call into
    Python, so other compiled functions can call them, and threads run them in parallel.
    """

    pack: Any
    rows: Any
    packed_bytes: Any


class Lanes(NamedTuple):
    """The running sums of a row: their type, and inlined functions that zero them and add up all lanes."""

    kind: types.Type
    zero: Any
    total: Any


def _lanes(kind: Vec) -> Lanes:
    return Lanes(kind, inline(kind)(lambda k: k.zero(kind)), inline(Float, kind)(lambda k, sums: k.hsum(sums)))


LANES_8, LANES_16, LANES_32 = _lanes(F32x8), _lanes(F32x16), _lanes(F32x32)

PAIR = types.UniTuple(F32x16, 2)


@inline(PAIR)
def _zero_pair(k):
    return k.zero(F32x16), k.zero(F32x16)


@inline(Float, PAIR)
def _total_pair(k, sums):
    even, odd = k.members(sums)
    return k.hsum(even + odd)


LANES_PAIR = Lanes(PAIR, _zero_pair, _total_pair)
"""Two alternating accumulators, so that one multiply-add need not wait for the other."""


class Part(NamedTuple):
    """A step along a row: ``inputs`` (a power of two) inputs and their bytes in the row and in the packed buffer.

    ``add(sums, weights, x)`` is the inlined function that adds its products to the running sums.
    """

    inputs: int
    add: Any
    weight_bytes: int
    packed_bytes: int


def make_rows(lanes: Lanes, lines: int, main: Part, *rest: Part) -> Any:
    """Make ``rows`` of a RowKernel: ``main`` as often as it fits, then each part of ``rest`` (two at most) if its bit
    is set in n. Each main part prefetches ``lines`` cache lines of weights."""
    zero, total = lanes.zero, lanes.total
    shift, add, weight_bytes, packed_bytes = main.inputs.bit_length() - 1, *main[1:]
    (bit_1, add_1, weights_1, packed_1), (bit_2, add_2, _, _) = (*rest, *[Part(0, add, 0, 0)] * 2)[:2]

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, buffer, out):
        for row in range(first, last):
            w = weights + row * row_bytes
            x = buffer
            sums = zero()
            for _ in range(n >> shift):
                for line in range(0, 64 * lines, 64):
                    prefetch(w + AHEAD + line)
                sums = add(sums, w, x)
                w += weight_bytes
                x += packed_bytes
            if n & bit_1:
                sums = add_1(sums, w, x)
                w += weights_1
                x += packed_1
            if n & bit_2:
                sums = add_2(sums, w, x)
            store_float(out + 4 * row, total(sums))

    return rows


def records(inputs: int, size: int) -> Any:
    """Make ``packed_bytes`` of a RowKernel: ``size`` bytes for every ``inputs`` inputs, rounded up."""

    @njit(**JIT)
    def packed_bytes(n):
        return (n + inputs - 1) // inputs * size

    return packed_bytes
