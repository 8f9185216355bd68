"""What tensor-core products share: selecting a block's inputs, storing results, summing over slots.

A block is a range of rows and a tile of inputs, those of one expert (``grouping``) or of one group, in order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.grids import per_value
from ..driver.shim import cuda
from .grouping import TILE

I32 = np.int32
ZERO = np.float32(0)


@cache
def finder(by_expert: bool, most: int = TILE) -> Any:
    """Make a device function: the matrix of this block and how many inputs its tile has, which for experts may be none;
    ``pairs_of`` (most,) int32 in shared memory gets each input's pair of token and slot, or of token and group, -1 past
    the last one."""

    @cuda.jit(device=True)
    def find(order, tile_experts, starts, sizes, groups, count, pairs_of, t, threads):
        tile, group = cuda.blockIdx.y, cuda.blockIdx.z
        matrix_id = I32(group)
        if by_expert:
            matrix_id = tile_experts[tile]
            begin, size = starts[tile], sizes[tile]
        else:
            begin = I32(tile * most)
            size = I32(min(most, count - begin))
        for i in range(t, most, threads):
            pair = I32(-1)
            if i < size:
                pair = order[begin + i] if by_expert else I32((begin + i) * groups + group)
            pairs_of[i] = pair
        return matrix_id, size

    return find


@cuda.jit(device=True)
def put_rows(out, pair, rows, row, upper, lower):
    """Store a pair's results of rows ``row`` and ``row`` + 8, where they exist."""
    if pair >= 0:
        target = np.int64(pair) * rows + row
        if row < rows:
            out[target] = upper
        if row + 8 < rows:
            out[target + 8] = lower


@per_value(128)
def add_slots(out, parts, size, slots, rows):
    """Sum parts (tokens, slots, rows) over slots, in order -> out (tokens, rows), ``size`` values."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        total = ZERO
        for k in range(slots):
            total += parts[(i // rows * slots + k) * rows + i % rows]
        out[i] = total
