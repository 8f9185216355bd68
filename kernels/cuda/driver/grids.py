"""Sizes of launches: threads of a block (powers of two, whole warps) and blocks of a grid."""

from __future__ import annotations

MOST_THREADS = 1024
"""Threads of a block at most."""


def threads_for(items: int, most: int = 256, each: int = 4) -> int:
    """Threads for a block with ``items`` independent items, about ``each`` of them a thread."""
    wanted = -(-items // each)
    return max(32, min(most, 1 << max(0, wanted - 1).bit_length()))


def blocks_for(items: int, threads: int) -> int:
    """Blocks of ``threads`` threads such that every item has a thread; at least one."""
    return max(1, -(-items // threads))


def tiles_for(items: int, tile: int) -> int:
    """Blocks for kernels that do one tile of ``tile`` items a block; at least one."""
    return max(1, -(-items // tile))
