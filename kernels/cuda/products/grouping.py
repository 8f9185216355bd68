"""Group (token, expert) pairs by expert, with a counting sort on the device, and divide them into tiles.

A tile is up to TILE pairs of one expert, which one thread block of a mat-mat product takes. The order of an expert's
pairs is unspecified; no result depends on it.
"""

from __future__ import annotations

import numpy as np

from ..driver.grids import per_value
from ..driver.intrinsics import divide
from ..driver.shim import cuda, i32

F32, I32 = np.float32, np.int32
TILE = 64
"""Maximum number of inputs that a thread block of a mat-mat product takes."""
MOST_EXPERTS = 1024
THREADS = 512


@cuda.jit
def sort_kernel(order, tile_experts, starts, sizes, error, ids, pairs, experts, tiles, failure):
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


def sort(stream, order, tile_experts, starts, sizes, error, ids, pairs, experts, tiles, failure):
    """Sort pairs by their expert, ids (pairs,) -> order (pairs,), and divide them into at most ``tiles`` tiles.

    For each tile write its expert, its start in ``order`` and its number of pairs (0 for unused tiles). Set
    ``error[0]`` to ``failure`` if an id is not in 0 .. ``experts`` - 1; there may be MOST_EXPERTS experts.
    """
    sort_kernel[1, THREADS, stream](order, tile_experts, starts, sizes, error, ids, pairs, experts, tiles, failure)


@per_value(128)
def add_slots(out, parts, size, slots, rows):
    """Sum parts (tokens, slots, rows) over slots, in order -> out (tokens, rows), ``size`` values."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        total = F32(0)
        for k in range(slots):
            total += parts[(i // rows * slots + k) * rows + i % rows]
        out[i] = total
