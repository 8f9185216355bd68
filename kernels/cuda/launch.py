"""How many threads a launch gets: powers of two that fit the work; few under the simulator, where each costs time."""

from __future__ import annotations

from .shim import SIMULATED

SIMULATED_THREADS = 4
"""Threads of a simulated block: enough that they have to wait for one another."""

SIMULATED_BLOCKS = 2
"""Simulated blocks of a launch that may have any number."""


def most_threads() -> int:
    """Threads of a block at most, where a kernel keeps something for each of them."""
    return SIMULATED_THREADS if SIMULATED else 1024


def threads_for(items: int, most: int = 256, each: int = 4) -> int:
    """Threads for a block with ``items`` independent items, about ``each`` of them a thread: a power of two, whole
    warps on a GPU."""
    if SIMULATED:
        return min(SIMULATED_THREADS, most)
    wanted = -(-items // each)
    return max(32, min(most, 1 << max(0, wanted - 1).bit_length()))


def blocks_for(items: int, threads: int) -> int:
    """Blocks such that every item has a thread; at least one. Few under the simulator: kernels that are launched with
    this go on with items a grid further, and must."""
    blocks = max(1, -(-items // threads))
    return min(blocks, SIMULATED_BLOCKS) if SIMULATED else blocks


def tiles_for(items: int, tile: int) -> int:
    """Blocks such that every item is in the tile of one, for kernels that do one tile a block."""
    return max(1, -(-items // tile))
