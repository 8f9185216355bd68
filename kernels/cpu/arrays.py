"""Checks at the border: compiled code trusts its addresses, so shapes and types are settled here."""

from __future__ import annotations

import numpy as np

from .workers import address

F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)


def f32(x: np.ndarray, name: str) -> np.ndarray:
    """``x`` as a C-contiguous float32 array (copied only if it has gaps); TypeError for another type."""
    if x.dtype != F32:
        raise TypeError(f"{name} must be float32, not {x.dtype}")
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def i32(x: np.ndarray, name: str) -> np.ndarray:
    """``x`` as a C-contiguous int32 array; TypeError for another type."""
    if x.dtype != I32:
        raise TypeError(f"{name} must be int32, not {x.dtype}")
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def expect(condition: bool, what: str, *shapes: object) -> None:
    """ValueError naming the op and the shapes unless ``condition``."""
    if not condition:
        raise ValueError(f"{what}: shapes do not fit: {', '.join(map(str, shapes))}")


def chunk_of(items: int, cost: int, threads: int, grain: int = 16384) -> int:
    """Items a thread claims at once.

    ``cost`` is the rough number of float operations per item. A chunk is worth ``grain`` of them (a few microseconds,
    so small jobs stay on the calling thread) and there are at most about 8 chunks a thread.
    """
    return max(1, grain // max(1, cost), items // (8 * threads))


__all__ = ["F32", "I32", "address", "chunk_of", "expect", "f32", "i32"]
