"""The greatest values of a row, as the next token is chosen among logits (docs/explanation/text.md 6).

Two steps: the greatest of every block, which threads share, then one rank after the other from the block that has the
greatest of all. For few ranks almost nothing is read twice.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ...ops import LEAST
from .. import tasktable as t
from ..sizes import RANK_BLOCK
from .lang import JIT, f32p, i32p, signed_order
from .registry import body

FLOOR = np.float32(LEAST)
NONE = np.int32(-(1 << 31))
"""Below the order of every number."""


@njit(**JIT)
def order(x):
    """The place of a value among all; NaN, which no comparison is true of, is where FLOOR is."""
    return signed_order(x if x > FLOOR else FLOOR)


@njit(**JIT)
def greatest_below(x, first, last, limit):
    """The greatest order in x[first:last] that is below ``limit``; NONE if there is none."""
    best = NONE
    for i in range(first, last):
        mine = order(x[i])
        mine = mine if mine < limit else NONE
        best = mine if mine > best else best
    return best


@njit(**JIT)
def place_of(x, first, last, wanted):
    """Where in x[first:last] the order ``wanted`` comes first; ``last`` if it does not."""
    for i in range(first, last):
        if order(x[i]) == wanted:
            return i
    return last


@body(t.RANK_PEAKS, exact=True)
def rank_peaks(args, first, last, thread):
    """Items are (token, block): the greatest order of a block, to be looked for from its beginning."""
    n, blocks = args.n, args.blocks
    peaks, starts = i32p(args.peaks), i32p(args.starts)
    for item in range(first, last):
        x, begin = f32p(args.x + 4 * n * (item // blocks)), item % blocks * RANK_BLOCK
        best = NONE
        for i in range(begin, min(begin + RANK_BLOCK, n)):
            mine = order(x[i])
            best = mine if mine > best else best
        peaks[item], starts[item] = best, begin


@body(t.TOP, exact=True)
def top(args, first, last, thread):
    """Items are tokens. A block from which a value was taken gets its next one as peak: an equal one further on, or the
    greatest below it from its beginning."""
    n, blocks, k = args.n, args.blocks, args.k
    for token in range(first, last):
        x = f32p(args.x + 4 * n * token)
        peaks, starts = i32p(args.peaks + 4 * blocks * token), i32p(args.starts + 4 * blocks * token)
        values, ids = f32p(args.values + 4 * k * token), i32p(args.ids + 4 * k * token)
        for rank in range(k):
            peak, block = NONE, 0
            for b in range(blocks):
                peak = peaks[b] if peaks[b] > peak else peak
            while peaks[block] != peak:
                block += 1
            end = min((block + 1) * RANK_BLOCK, n)
            at = place_of(x, np.int64(starts[block]), end, peak)
            values[rank], ids[rank] = x[at], at
            if rank + 1 < k:
                again = place_of(x, at + 1, end, peak)
                if again < end:
                    starts[block] = again
                else:
                    peaks[block] = greatest_below(x, block * RANK_BLOCK, end, peak)
                    starts[block] = block * RANK_BLOCK
