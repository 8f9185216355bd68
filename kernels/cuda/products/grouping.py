"""Group pairs of token and slot by expert: a counting sort on the device, cut into tiles.

A tile is up to TILE pairs of one expert, for one block of a mat-mat product. The order of an expert's pairs is
unspecified; no result depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import divide
from ..driver.shim import cuda, i32

I32 = np.int32
TILE = 64
"""Inputs per block of a mat-mat product."""
MOST_EXPERTS = 1024
THREADS = 512


class Tiles(NamedTuple):
    """``order``: pairs by expert. Per tile: its expert, its start in ``order``, its number of pairs (0: tile unused).
    ``most``: upper bound on the number of tiles."""

    order: Any
    experts: Any
    starts: Any
    sizes: Any
    most: int


@cuda.jit
def _sort(ids, order, tile_experts, starts, sizes, pairs, experts, tiles, error, failure):
    """Sort in one block. Ids out of range count as 0 and set ``error``."""
    t = cuda.threadIdx.x
    counts = cuda.shared.array(MOST_EXPERTS, i32)
    place = cuda.shared.array(MOST_EXPERTS, i32)
    for e in range(t, experts, THREADS):
        counts[e] = I32(0)
    for i in range(t, tiles, THREADS):
        sizes[i] = I32(0)
    cuda.syncthreads()
    for i in range(t, pairs, THREADS):
        e = ids[i]
        if e < 0 or e >= experts:
            error[0] = I32(failure)
            e = I32(0)
        cuda.atomic.add(counts, e, 1)
    cuda.syncthreads()
    if t == 0:
        start, tile = I32(0), I32(0)
        for e in range(experts):
            size = counts[e]
            place[e] = start
            for k in range(divide(size + TILE - 1, TILE)):
                tile_experts[tile] = I32(e)
                starts[tile] = I32(start + k * TILE)
                sizes[tile] = I32(min(TILE, size - k * TILE))
                tile = I32(tile + 1)
            start = I32(start + size)
    cuda.syncthreads()
    for i in range(t, pairs, THREADS):
        e = ids[i]
        if e < 0 or e >= experts:
            e = I32(0)
        order[cuda.atomic.add(place, e, 1)] = I32(i)


def tiles(
    stream: Any, ids: Any, pairs: int, experts: int, error: Any, failure: int, scratch: Callable[..., Any]
) -> Tiles:
    """Return the tiles of ids (pairs,); ``error[0]`` becomes ``failure`` if one is not below ``experts`` (at most
    MOST_EXPERTS)."""
    count = min(pairs, experts) + pairs // TILE
    order = scratch((pairs,), np.int32)
    tile_experts, starts, sizes = (scratch((count,), np.int32) for _ in range(3))
    _sort[1, THREADS, stream](ids, order, tile_experts, starts, sizes, pairs, experts, count, error, failure)
    return Tiles(order, tile_experts, starts, sizes, count)
