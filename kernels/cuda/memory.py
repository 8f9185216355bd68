"""Device memory in reserve: ops allocate results all the time, and the driver's own allocation stops the device.

A ``Buffer`` gives its block back when the last array over it is gone; the next op gets it, which is safe because all
work of a backend is in one stream. Large blocks (weights, caches) go straight back to the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .driver import Block

KEPT = 256 << 20
"""Larger blocks are not kept in reserve."""

SLAB_BYTES = 1 << 16
"""Room for the small inputs of one recording."""

ALIGNMENT = 256


class Buffer:
    """A piece of device memory: ``block`` from byte ``start`` on. A place of a recording has none until it is sealed.

    mirror: the same bytes in host memory: of inputs, which are refilled there and copied with all others of their slab,
    and of a recording's results, which come back there. fetch: what has to be called first, where they come back only
    when they are asked for. keep: what must live as long.
    """

    __slots__ = ("block", "fetch", "keep", "mirror", "nbytes", "owner", "slab", "start")

    def __init__(
        self, block: Block | None, nbytes: int, start: int = 0, owner: Memory | None = None, slab: Slab | None = None
    ):
        self.block, self.nbytes, self.start, self.owner, self.slab = block, nbytes, start, owner, slab
        self.mirror = None if slab is None else slab.host[start : start + nbytes]
        self.fetch: Callable[[], None] | None = None
        self.keep: Any = None

    def __del__(self) -> None:
        if self.owner is not None and self.block is not None:
            self.owner.give_back(self.block)


class Pinned:
    """Host memory that the device copies from and to (``values``, uint8); it serves others when nobody holds it."""

    def __init__(self, values: np.ndarray, pool: list[np.ndarray]):
        self.values, self._pool = values, pool

    def __del__(self) -> None:
        self._pool.append(self.values)


class Slab:
    """Small inputs side by side in device memory, and their values in host memory, copied all at once.

    dirty: values were written since the last copy; busy: a copy may be under way, so they must not be written now.
    """

    def __init__(self, memory: Memory):
        self.driver, self._memory = memory.driver, memory
        self._pinned = memory.pinned(SLAB_BYTES)
        self.host = self._pinned.values
        self._room = memory.buffer(SLAB_BYTES)
        assert self._room.block is not None
        self.block: Block = self._room.block
        self.used, self.dirty, self.busy = 0, False, False

    def take(self, values: np.ndarray) -> Buffer | None:
        """A place for ``values``; None if there is no room."""
        start, end = self.used, self.used + values.nbytes
        if end > SLAB_BYTES:
            return None
        self.used = -(-end // 16) * 16
        buffer = Buffer(self.block, values.nbytes, start, slab=self)
        self.write(buffer, 0, values)
        return buffer

    def write(self, buffer: Buffer, offset: int, values: np.ndarray) -> None:
        """New values from byte ``offset`` of a buffer on; the device gets them with the next copy."""
        assert buffer.mirror is not None
        if self.busy:
            self.driver.sync()
            self.busy = False
        buffer.mirror[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)
        self.dirty = True

    def flush(self) -> None:
        """Copy what was written."""
        if self.dirty and self.used:
            self.driver.to_device(self.block, 0, self.host[: self.used])
            self.dirty, self.busy = False, True


class Memory:
    """Blocks of a driver, kept for reuse."""

    def __init__(self, driver: Any, limit: int | None = None):
        self.driver, self.limit = driver, limit
        self.taken = 0
        """Bytes asked of the driver and not given back."""
        self._free: dict[int, list[Block]] = {}
        self._pinned: dict[int, list[np.ndarray]] = {}
        self._lock = threading.RLock()

    def buffer(self, nbytes: int) -> Buffer:
        """A new buffer; values are undefined. MemoryError if there is no room."""
        size = _size_class(nbytes)
        with self._lock:
            kept = self._free.get(size)
            block = kept.pop() if kept else self._ask(size)
        return Buffer(block, nbytes, owner=self)

    def room(self) -> int:
        """Bytes that can still be had, about."""
        free, _ = self.driver.memory()
        return free if self.limit is None else max(0, min(free, self.limit - self.taken))

    def _ask(self, size: int) -> Block:
        if self.limit is not None and self.taken + size > self.limit:
            self.trim()
            if self.taken + size > self.limit:
                raise MemoryError(
                    f"{size / 2**30:.2f} GiB more do not fit the limit of {self.limit / 2**30:.2f} GiB of GPU memory, "
                    f"of which {self.taken / 2**30:.2f} GiB are in use"
                )
        try:
            block: Block = self.driver.alloc(size)
        except MemoryError:
            self.trim()
            block = self.driver.alloc(size)
        self.taken += size
        return block

    def give_back(self, block: Block) -> None:
        """``block`` is not in use any more."""
        with self._lock:
            if block.nbytes <= KEPT:
                self._free.setdefault(block.nbytes, []).append(block)
            else:
                self._drop(block)

    def trim(self) -> None:
        """Give everything in reserve back to the driver."""
        with self._lock:
            for blocks in self._free.values():
                for block in blocks:
                    self._drop(block)
            self._free.clear()

    def _drop(self, block: Block) -> None:
        self.taken -= block.nbytes
        self.driver.free(block)

    def pinned(self, nbytes: int) -> Pinned:
        """Host memory for copies, at least so much."""
        size = _size_class(nbytes)
        with self._lock:
            pool = self._pinned.setdefault(size, [])
            return Pinned(pool.pop() if pool else self.driver.pinned(size), pool)


def _size_class(nbytes: int) -> int:
    """The next of 4 sizes to every power of two, so that blocks fit again though chunks differ; large ones exactly."""
    size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
    if size > KEPT:
        return size
    step = max(ALIGNMENT, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
