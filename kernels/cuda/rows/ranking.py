"""The greatest values of a row, for choosing the next token among logits (docs/explanation/text.md 6).

A value and its index make one integer in the order of ``top``; these are distinct, so the result does not depend on
the order of comparisons. A block sorts a tile of them in runs of k, then repeatedly keeps the greater half of two runs;
for k = 1 that is a tree maximum. The k best of every tile are the candidates of the next round, until one tile holds
all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import LEAST, MOST_RANKED
from ..driver.grids import MOST_THREADS, tiles_for
from ..driver.shim import cuda, i64
from .indexing import order_key

TILE = 2 * MOST_RANKED
"""Candidates of a block: at least two runs of as many ranks as there may be."""

THREADS = min(MOST_THREADS, TILE // 2)
"""Each compares two candidates."""

FLOOR = np.float32(LEAST)
NOBODY = np.int64(-(1 << 63))
"""Below every candidate."""

MIDDLE, LOW = np.int64(1 << 31), np.int64(0xFFFFFFFF)


@cuda.jit(device=True)
def candidate(x, at):
    """The order of a value above, and below it its place, the lower the greater. NaN, which no comparison is true of,
    is where FLOOR is."""
    return ((order_key(x if x > FLOOR else FLOOR) - MIDDLE) << 32) + (LOW - at)


@cuda.jit(device=True)
def place_of(found):
    """The index of a candidate in its row."""
    return LOW - (found & LOW)


@cuda.jit(device=True)
def put_in_order(keys, low, high, falling):
    """Exchange two keys that are in the wrong order."""
    a, b = keys[low], keys[high]
    if (a < b) == falling:
        keys[low], keys[high] = b, a


@cuda.jit(device=True)
def keep_greatest(keys, tile, width):
    """The ``width`` greatest of ``tile`` shared keys, falling, in front; both are powers of two, tile the larger one.

    Bitonic: runs are sorted, falling and rising in turn. The greater one of each pair of places in two neighbours is
    among the greater half of both; those rise and fall once, which log2(width) passes over them sort."""
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


@cuda.jit
def of_values_kernel(kept, x, n, k, tile, tiles, width):
    """Block: the k best of one tile of a row's values."""
    keys = cuda.shared.array(TILE, i64)
    row, first = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * tile
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, tile, step):
        keys[i] = candidate(x[row * n + first + i], first + i) if first + i < n else NOBODY
    cuda.syncthreads()
    keep_greatest(keys, tile, width)
    for i in range(t, k, step):
        kept[cuda.blockIdx.x * k + i] = keys[i]


@cuda.jit
def of_candidates_kernel(kept, found, count, k, tile, tiles, width):
    """Block: the k best of one tile of a row's ``count`` candidates."""
    keys = cuda.shared.array(TILE, i64)
    row, first = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * tile
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, tile, step):
        keys[i] = found[row * count + first + i] if first + i < count else NOBODY
    cuda.syncthreads()
    keep_greatest(keys, tile, width)
    for i in range(t, k, step):
        kept[cuda.blockIdx.x * k + i] = keys[i]


@cuda.jit
def ranks_kernel(values, ids, found, x, n, count, k, tile, width):
    """Block: the k best of all ``count`` candidates of a row, told as values and places."""
    keys = cuda.shared.array(TILE, i64)
    row, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, tile, step):
        keys[i] = found[row * count + i] if i < count else NOBODY
    cuda.syncthreads()
    keep_greatest(keys, tile, width)
    for i in range(t, k, step):
        at = place_of(keys[i])
        ids[row * k + i] = at
        values[row * k + i] = x[row * n + at]


def width_for(k: int) -> int:
    """Length of a run: the power of two that holds k ranks."""
    return 1 << (k - 1).bit_length()


def of_values(stream: Any, kept: Any, x: Any, rows: int, n: int, k: int) -> None:
    """The k best of every tile of x (rows, n), as candidates (rows, tiles, k)."""
    tiles = tiles_for(n, TILE)
    of_values_kernel[rows * tiles, THREADS, stream](kept, x, n, k, TILE, tiles, width_for(k))


def of_candidates(stream: Any, kept: Any, found: Any, rows: int, count: int, k: int) -> None:
    """The k best of every tile of candidates (rows, count), as (rows, tiles, k)."""
    tiles = tiles_for(count, TILE)
    of_candidates_kernel[rows * tiles, THREADS, stream](kept, found, count, k, TILE, tiles, width_for(k))


def ranks(stream: Any, values: Any, ids: Any, found: Any, x: Any, rows: int, n: int, count: int, k: int) -> None:
    """The k best of candidates (rows, count), which fit one tile, as values and places in x (rows, n)."""
    ranks_kernel[rows, THREADS, stream](values, ids, found, x, n, count, k, TILE, width_for(k))
