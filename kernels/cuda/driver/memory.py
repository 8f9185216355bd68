"""A pool of GPU memory blocks, reused by size: ops allocate results all the time, and each allocation by the driver
itself would stop the device.

A ``Buffer`` returns its block to the pool when its last array is gone. The next op may use it at once, because all work
of a backend is in one stream. Large blocks (weights, caches) are freed instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from .gpu import Block

KEPT = 256 << 20
"""Size in bytes of the largest block that the pool keeps; larger ones are freed."""

SLAB_BYTES = 1 << 16
"""Bytes of device memory for the small inputs of one recording together."""

ALIGNMENT = 256


class Buffer:
    """A range of device memory: ``nbytes`` bytes from byte ``start`` of ``block``. A result of a recording has no block
    until ``seal`` gives it one.

    owner: the pool or other object that takes the block back when the buffer is deleted
    slab: the ``Slab`` that the buffer is part of, if it is a small input of a recording
    mirror: the same bytes in host memory, for an input (which is written there) or a result that replays fetch
    fetch: function that brings the mirror up to date, for a result that is fetched only when asked for
    keep: objects that must live as long as the buffer
    """

    __slots__ = ("block", "fetch", "keep", "mirror", "nbytes", "owner", "slab", "start")

    def __init__(
        self,
        block: Block | None,
        nbytes: int,
        start: int = 0,
        owner: Memory | Far | None = None,
        slab: Slab | None = None,
    ):
        self.block, self.nbytes, self.start, self.owner, self.slab = block, nbytes, start, owner, slab
        self.mirror = None if slab is None else slab.host[start : start + nbytes]
        self.fetch: Callable[[], None] | None = None
        self.keep: Any = None

    def __del__(self) -> None:
        if self.owner is not None and self.block is not None:
            with suppress(Exception):  # after an error that made the context unusable, its memory is already free
                self.owner.give_back(self.block)


class Pinned:
    """Page-locked host memory (``values``, uint8), which returns to ``pool`` when this object is deleted."""

    def __init__(self, values: np.ndarray, pool: list[np.ndarray]):
        self.values, self._pool = values, pool

    def __del__(self) -> None:
        self._pool.append(self.values)


class Far:
    """Owner of a buffer that is in page-locked host memory, from which kernels read over the bus."""

    def __init__(self, driver: Any, values: np.ndarray):
        self.driver, self.values = driver, values

    def give_back(self, block: Block) -> None:
        self.driver.unpin(self.values)


class Slab:
    """The small inputs of a recording, side by side in host memory and again in device memory, so that one copy brings
    all of them to the device.

    dirty: whether host values were written since the last copy
    busy: whether a copy may still be running, so that host values must not be changed yet
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
        """Add an input with these values and return its buffer; None if there is not enough space left."""
        start, end = self.used, self.used + values.nbytes
        if end > SLAB_BYTES:
            return None
        self.used = -(-end // 16) * 16
        buffer = Buffer(self.block, values.nbytes, start, slab=self)
        self.write(buffer, 0, values)
        return buffer

    def write(self, buffer: Buffer, offset: int, values: np.ndarray) -> None:
        """Write host values at byte ``offset`` of an input's buffer; the next copy brings them to the device."""
        assert buffer.mirror is not None
        if self.busy:
            self.driver.sync()
            self.busy = False
        buffer.mirror[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)
        self.dirty = True

    def flush(self) -> None:
        """Copy the inputs to the device if any was written."""
        if self.dirty and self.used:
            self.driver.to_device(self.block, 0, self.host[: self.used])
            self.dirty, self.busy = False, True


class Memory:
    """A pool of GPU memory blocks allocated through ``driver``, reused by size; at most ``limit`` bytes (None: no
    limit)."""

    def __init__(self, driver: Any, limit: int | None = None):
        self.driver, self.limit = driver, limit
        self.taken = 0
        """Bytes that the driver allocated for us and that are not freed yet, in use or in the pool."""
        self._free: dict[int, list[Block]] = {}
        self._pinned: dict[int, list[np.ndarray]] = {}
        self._lock = threading.RLock()

    def buffer(self, nbytes: int) -> Buffer:
        """Allocate a buffer, not initialised; raise MemoryError if the device has too little memory or the limit would
        be exceeded."""
        size = _size_class(nbytes)
        with self._lock:
            kept = self._free.get(size)
            block = kept.pop() if kept else self._ask(size)
        return Buffer(block, nbytes, owner=self)

    def far(self, values: np.ndarray) -> Buffer:
        """Copy values to page-locked host memory, which kernels can read, and return its buffer; raise MemoryError if
        the host has too little."""
        pinned = self.driver.pinned(values.nbytes)
        np.copyto(pinned, values.reshape(-1))
        return Buffer(Block(pinned.ctypes.data, values.nbytes), values.nbytes, owner=Far(self.driver, pinned))

    def room(self) -> int:
        """Return about how many bytes of device memory are free, within the limit."""
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
        """Return a block to the pool, or to the driver if it is large."""
        with self._lock:
            if block.nbytes <= KEPT:
                self._free.setdefault(block.nbytes, []).append(block)
            else:
                self._drop(block)

    def trim(self) -> None:
        """Free all pooled blocks."""
        with self._lock:
            for blocks in self._free.values():
                for block in blocks:
                    self._drop(block)
            self._free.clear()

    def _drop(self, block: Block) -> None:
        self.taken -= block.nbytes
        self.driver.free(block)

    def pinned(self, nbytes: int) -> Pinned:
        """Return page-locked host memory of at least ``nbytes`` bytes, from a pool."""
        size = _size_class(nbytes)
        with self._lock:
            pool = self._pinned.setdefault(size, [])
            return Pinned(pool.pop() if pool else self.driver.pinned(size), pool)


def _size_class(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to one of four sizes between powers of two, so that blocks of similar results can be
    reused; sizes above KEPT are rounded only to the alignment."""
    size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
    if size > KEPT:
        return size
    step = max(ALIGNMENT, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
