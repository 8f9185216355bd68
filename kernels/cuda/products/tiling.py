"""What products on tensor cores share: which inputs a block multiplies, where results go, sums over slots.

A block is a range of rows and a tile of at most TILE inputs, those of one expert (``grouping``) or of one group, in
order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.shim import cuda
from .grouping import TILE

I32 = np.int32
ZERO = np.float32(0)


@cache
def finder(by_expert: bool) -> Any:
    """A device function: the matrix of this block and how many inputs its tile has, which for experts may be none;
    ``pairs_of`` (TILE,) int32 in shared memory gets the pair of token and slot, or of token and group, of each, -1
    behind the last one."""

    @cuda.jit(device=True)
    def find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, threads):
        tile, group = cuda.blockIdx.y, cuda.blockIdx.z
        which = I32(group)
        if by_expert:
            which = tile_experts[tile]
            begin, size = starts[tile], sizes[tile]
        else:
            begin = I32(tile * TILE)
            size = I32(min(TILE, count - begin))
        for i in range(t, TILE, threads):
            pair = I32(-1)
            if i < size:
                pair = order[begin + i] if by_expert else I32((begin + i) * groups + group)
            pairs_of[i] = pair
        return which, size

    return find


@cuda.jit(device=True)
def put_rows(out, pair, rows, row, upper, lower):
    """A pair's results of rows ``row`` and ``row`` + 8, where there are such."""
    if pair >= 0:
        to = np.int64(pair) * rows + row
        if row < rows:
            out[to] = upper
        if row + 8 < rows:
            out[to + 8] = lower


@cuda.jit
def _add_slots(out, parts, slots, rows, size):
    """Thread: one result, the sum over slots in their order."""
    i = cuda.grid(1)
    if i < size:
        token = i // rows
        total = ZERO
        for s in range(slots):
            total += parts[(token * slots + s) * rows + (i - token * rows)]
        out[i] = total


def add_slots(stream: Any, out: Any, parts: Any, tokens: int, slots: int, rows: int) -> None:
    """parts (tokens, slots, rows) -> out (tokens, rows), added in the order of the slots."""
    size = tokens * rows
    _add_slots[-(-size // 128), 128, stream](out, parts, slots, rows, size)
