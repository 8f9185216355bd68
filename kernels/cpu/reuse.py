"""A pool of memory for large results of ops, because fresh pages from the system cost more than small ops take to fill
them.

The arrays of a chunk of prompt tokens are tens of megabytes. If they went back to the system after each op, it would
have to clear their pages again for the next: a twelfth of the time of a prefill. Small arrays are allocated by malloc,
which keeps their pages by itself.
"""

from __future__ import annotations

import math
import threading
from collections import deque

import numpy as np
from numpy.typing import DTypeLike

LEAST = 1 << 20
"""Size in bytes below which arrays are allocated by NumPy as usual, not from the pool."""


class _Loan:
    """A block of the pool in use by an array and its views; it returns to the pool when the last of them is gone."""

    def __init__(self, memory: Memory, block: np.ndarray, shape: tuple[int, ...], kind: np.dtype):
        self.memory, self.block = memory, block
        address = block.ctypes.data, False
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": kind.str, "data": address}

    def __del__(self) -> None:
        self.memory.give_back(self.block)


class Memory:
    """The pool: blocks of past results, kept for new results of the same size until no block is in use.

    Blocks kept and in use never exceed together what was once in use at the same time, so the pool needs no more memory
    than a program without it. While any array is in use the pool frees nothing, so copy one that outlives its pass. Any
    thread may allocate and free.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._lock = threading.Lock()
        self._returned: deque[np.ndarray] = deque()
        self.kept = self.lent = self._most = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised array, from the pool if it is large."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < LEAST:
            return np.empty(shape, kind)
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                block = blocks.pop()
                self.kept -= size
            else:
                most = max(self._most, self.lent + size)
                self._drop(most - self.lent - size)
                block = np.empty(size, np.uint8)  # raises MemoryError: nothing is counted yet
                self._most = most
            self.lent += size
        self._settle()
        return np.asarray(_Loan(self, block, shape, kind))

    def give_back(self, block: np.ndarray) -> None:
        """Return a block that no array uses any more to the pool; free all blocks if it was the last in use."""
        self._returned.append(block)
        self._settle()

    def _settle(self) -> None:
        """Put returned blocks into the pool, unless another call is doing so, which then takes these, too.

        This never waits for the lock, because the garbage collector may return a block in the middle of ``empty``, on
        the thread that holds it.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    block = self._returned.popleft()
                    self.lent -= block.nbytes
                    self.kept += block.nbytes
                    self._free.setdefault(block.nbytes, []).append(block)
                    if self.lent == 0:
                        self._most = 0
                        self._drop(0)
            finally:
                self._lock.release()

    def _drop(self, most: int) -> None:
        """Free unused blocks until the pool keeps at most ``most`` bytes."""
        while self.kept > most:
            size, blocks = next(iter(self._free.items()))
            if blocks:
                blocks.pop()
                self.kept -= size
            else:
                del self._free[size]
