"""Memory of large results, used again within a pass: fresh pages cost more than the small ops that fill them.

The arrays of a chunk of tokens are tens of megabytes. Given back to the system after each op, their pages are cleared
again for the next: a twelfth of a prefill. Small arrays stay with malloc, which keeps their
pages by itself.
"""

from __future__ import annotations

import math
import threading
from collections import deque

import numpy as np
from numpy.typing import DTypeLike

LEAST = 1 << 20
"""Bytes below which arrays are NumPy's own."""


class _Loan:
    """A block lent to an array and its views; it goes back when the last of them is gone."""

    def __init__(self, memory: Memory, block: np.ndarray, shape: tuple[int, ...], kind: np.dtype):
        self.memory, self.block = memory, block
        address = block.ctypes.data, False
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": kind.str, "data": address}

    def __del__(self) -> None:
        self.memory.give_back(self.block)


class Memory:
    """Blocks that were results, kept for results of the same size until no block is in use.

    Never more is kept and lent together than has been lent at once, so nobody needs more memory than without. An array
    that outlives its pass would keep the others' blocks, too: copy it. Any thread may take and give back.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._lock = threading.Lock()
        self._returned: deque[np.ndarray] = deque()
        self.kept = self.lent = self._most = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised array."""
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
        """Keep a block that no array uses any more; free all if it was the last."""
        self._returned.append(block)
        self._settle()

    def _settle(self) -> None:
        """Count what came back, unless somebody is at it, who then counts this, too.

        Never wait here: the collector may give back while its own thread takes.
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
        """Free blocks until at most ``most`` bytes are kept."""
        while self.kept > most:
            size, blocks = next(iter(self._free.items()))
            if blocks:
                blocks.pop()
                self.kept -= size
            else:
                del self._free[size]
