"""How many threads a launch gets: powers of two that fit the work; few under the simulator, where each costs time."""

from __future__ import annotations

from .shim import SIMULATED

SIMULATED_THREADS = 4
"""Threads of a simulated block: enough that they have to wait for one another."""


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
    """Blocks such that every item has a thread; at least one."""
    return max(1, -(-items // threads))
