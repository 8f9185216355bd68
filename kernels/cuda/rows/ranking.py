"""Top-k values of a row of logits, for sampling (docs/explanation/text.md 6).

A value and its index are packed into one integer (a *candidate*), in the order of the op ``top``; these are distinct,
so the result does not depend on the order of comparisons. A thread block sorts a tile of them in runs of k, then
repeatedly keeps the greater half of two runs; for k = 1 that is a tree maximum. The k best of every tile are the
candidates of the next round, until one tile holds all that are left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import LEAST, MOST_RANKED
from ..driver.grids import MOST_THREADS, blocks_for, per_value
from ..driver.shim import cuda, i64
from .indexing import order_key

TILE = 2 * MOST_RANKED
"""Candidates per thread block: at least two runs of MOST_RANKED."""

THREADS = min(MOST_THREADS, TILE // 2)
"""Each thread compares two candidates."""

FLOOR = np.float32(LEAST)
EMPTY = np.int64(-(1 << 63))
"""An integer below every candidate."""

MIDDLE, LOW = np.int64(1 << 31), np.int64(0xFFFFFFFF)


@cuda.jit(device=True)
def candidate(x, at):
    """Pack the order of the value at index ``at`` into the high half of an integer, and the index into the low half, so
    that of equal values the one with the lower index is greater. NaN counts as FLOOR."""
    return ((order_key(x if x > FLOOR else FLOOR) - MIDDLE) << 32) + (LOW - at)


@cuda.jit(device=True)
def place_of(key):
    """Return the index of a candidate in its row."""
    return LOW - (key & LOW)


@cuda.jit(device=True)
def put_in_order(keys, low, high, descending):
    """Exchange two keys that are in the wrong order."""
    a, b = keys[low], keys[high]
    if (a < b) == descending:
        keys[low], keys[high] = b, a


@cuda.jit(device=True)
def keep_greatest(keys, tile, width):
    """Move the ``width`` greatest of ``tile`` shared keys, descending, to the front; both are powers of two, tile the
    larger.

    Bitonic: runs are sorted, descending and ascending alternately. The pairwise maxima of two neighbouring runs are the
    greater half of both; they rise and fall once, so log2(width) passes sort them.
    """
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    size = 2
    while size <= width:
        distance = size // 2
        while distance > 0:
            for i in range(t, tile // 2, step):
                at = 2 * i - (i & (distance - 1))
                put_in_order(keys, at, at + distance, (at & size) == 0)
            cuda.syncthreads()
            distance //= 2
        size *= 2
    gap = width
    while gap < tile:
        runs = tile // (2 * gap)
        for i in range(t, runs * width, step):
            at = i // width * 2 * gap + i % width
            other = keys[at + gap]
            if keys[at] < other:
                keys[at] = other
        cuda.syncthreads()
        gap *= 2
        distance = width // 2
        while distance > 0:
            for i in range(t, runs * width // 2, step):
                run, j = i // (width // 2), i % (width // 2)
                at = run * gap + 2 * j - (j & (distance - 1))
                put_in_order(keys, at, at + distance, (run & 1) == 0)
            cuda.syncthreads()
            distance //= 2


@per_value()
def candidates(out, x, size, n):
    """Make the candidates of all values of x, rows of n values."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = candidate(x[i], i % n)


@cuda.jit
def best_kernel(kept, candidates, count, k, tile, tiles, width):
    """Keep the k best of one tile of a row's ``count`` candidates per block."""
    keys = cuda.shared.array(TILE, i64)
    row, first = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * tile
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, tile, step):
        keys[i] = candidates[row * count + first + i] if first + i < count else EMPTY
    cuda.syncthreads()
    keep_greatest(keys, tile, width)
    for i in range(t, k, step):
        kept[cuda.blockIdx.x * k + i] = keys[i]


@cuda.jit
def ranks_kernel(values, ids, candidates, x, n, count, k, tile, width):
    """Store the k best of all ``count`` candidates of a row, as values and indices, per block."""
    keys = cuda.shared.array(TILE, i64)
    row, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, tile, step):
        keys[i] = candidates[row * count + i] if i < count else EMPTY
    cuda.syncthreads()
    keep_greatest(keys, tile, width)
    for i in range(t, k, step):
        at = place_of(keys[i])
        ids[row * k + i] = at
        values[row * k + i] = x[row * n + at]


def width_for(k: int) -> int:
    """Return the length of a run: the least power of two that is at least k."""
    return 1 << (k - 1).bit_length()


def best(stream: Any, kept: Any, candidates: Any, rows: int, count: int, k: int) -> None:
    """Keep the k best of every tile of candidates (rows, count), as (rows, tiles, k)."""
    tiles = blocks_for(count, TILE)
    best_kernel[rows * tiles, THREADS, stream](kept, candidates, count, k, TILE, tiles, width_for(k))


def ranks(stream: Any, values: Any, ids: Any, candidates: Any, x: Any, rows: int, n: int, count: int, k: int) -> None:
    """Store the k best of candidates (rows, count), which fit one tile, as values and indices in x (rows, n)."""
    ranks_kernel[rows, THREADS, stream](values, ids, candidates, x, n, count, k, TILE, width_for(k))
