"""Top-k values of a row of logits, for sampling (docs/explanation/text.md 6).

Two steps: the maximum of every block, in parallel; then one rank after another from the block with the greatest
maximum. For few ranks almost nothing is read twice.
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
"""An order (see ``order``) below that of every value."""


@njit(**JIT)
def order(x):
    """Map a value to its *order*, an integer that is larger the larger the value; NaN and values below FLOOR have the
    order of FLOOR."""
    return signed_order(x if x > FLOOR else FLOOR)


@njit(**JIT)
def greatest_below(x, first, last, limit):
    """Return the greatest order in x[first:last] that is below ``limit``; NONE if there is none."""
    best = NONE
    for i in range(first, last):
        key = order(x[i])
        key = key if key < limit else NONE
        best = key if key > best else best
    return best


@njit(**JIT)
def place_of(x, first, last, key):
    """Return the first index in first..last-1 at which ``order`` of the value is ``key``, or ``last``."""
    for i in range(first, last):
        if order(x[i]) == key:
            return i
    return last


@body(t.RANK_PEAKS, exact=True)
def rank_peaks(args, first, last, thread):
    """Store each block's greatest order, and the block's beginning as the index from which to search for it; items are
    (token, block)."""
    n, blocks = args.n, args.blocks
    peaks, starts = i32p(args.peaks), i32p(args.starts)
    for item in range(first, last):
        x, begin = f32p(args.x + 4 * n * (item // blocks)), item % blocks * RANK_BLOCK
        best = NONE
        for i in range(begin, min(begin + RANK_BLOCK, n)):
            key = order(x[i])
            best = key if key > best else best
        peaks[item], starts[item] = best, begin


@body(t.TOP, exact=True)
def top(args, first, last, thread):
    """Take the k greatest values; items are tokens. A block from which a value was taken gets a new peak: an equal
    value further on, or the greatest value below it."""
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
                next_equal = place_of(x, at + 1, end, peak)
                if next_equal < end:
                    starts[block] = next_equal
                else:
                    peaks[block] = greatest_below(x, block * RANK_BLOCK, end, peak)
                    starts[block] = block * RANK_BLOCK
