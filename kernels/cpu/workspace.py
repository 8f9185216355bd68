"""Scratch memory of ops: one growing arena per Python thread, so that the decode path allocates nothing big."""

from __future__ import annotations

import threading

import numpy as np

from .workers import aligned

ALIGNMENT = 128


class _Arena(threading.local):
    memory: np.ndarray | None = None
    base = 0
    size = 0


_ARENA = _Arena()


def scratch(*sizes: int) -> tuple[int, ...]:
    """Addresses of consecutive uninitialised areas of the given numbers of bytes, each 128-byte aligned.

    They are valid until the next call on the same thread.
    """
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    if total > _ARENA.size:
        memory = aligned(total, ALIGNMENT)
        _ARENA.memory, _ARENA.base, _ARENA.size = memory, memory.ctypes.data, total
    base = _ARENA.base
    return tuple(base + start for start in starts)
