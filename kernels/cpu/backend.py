"""The CPU backend: an op is run when it is called, as one job of the worker pool, or recorded to be run later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import DTypeLike

from ..formats.matrix import Matrix
from .abi import Step
from .gemm import MIN_TOKENS
from .ops import HostCall, TaskOps
from .products import ProductOps, scattered
from .recording import Recording
from .reuse import Memory
from .steps import F32
from .workers import Workers, address, aligned, shared

ALIGNMENT = 128


class Ops(ProductOps, TaskOps):
    """All ops, whether their steps run at once or are recorded."""


class _Scratch(threading.local):
    """Scratch memory of one Python thread, from which ``temp`` takes; it grows as needed and is used again by every op,
    so that ops allocate nothing but results."""

    def __init__(self) -> None:
        self.block, self.base, self.used = aligned(0), 0, 0
        self.outgrown: list[np.ndarray] = []

    def take(self, size: int) -> int:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self.used + size > len(self.block):
            self.outgrown.append(self.block)
            self.block, self.used = aligned(max(size, 2 * len(self.block)), ALIGNMENT), 0
            self.base = address(self.block)
        start = self.base + self.used
        self.used += size
        return start

    def clear(self) -> None:
        self.used = 0
        self.outgrown.clear()


class CPU(Ops):
    """The CPU backend, computing on ``threads`` threads (None: as many as this process has cores).

    Raise ValueError unless there are 1 to 256. Backends with the same number of threads share a worker pool. Several
    Python threads may call ops concurrently.
    """

    name = "cpu"
    recorded_rows = MIN_TOKENS - 1
    """Maximum number of tokens in a recorded pass for which products still use the row kernels, so that each token's
    result has the same bits as if it were computed alone."""

    def __init__(self, threads: int | None = None):
        self.workers: Workers = shared(threads)
        self._desk, self._results = _Scratch(), Memory()

    @property
    def threads(self) -> int:
        """Return the number of threads that ops of this backend use; assign to change it."""
        return self.workers.threads

    @threads.setter
    def threads(self, count: int) -> None:
        self.workers = shared(count)

    def load(self, progress: Callable[[str], None] | None = None, formats: Collection[str] = ()) -> None:
        """Load the kernels now instead of at the first op, compiling them, and those of ``formats``, if this machine
        has none yet."""
        self.workers.load(progress, formats)

    def callback(self, function: Callable[[np.ndarray], None]) -> HostCall:
        """Wrap a Python function of expert ids, int32 (T, K), so that the op ``call`` can call it; it must not
        raise."""
        return HostCall(function)

    def scattered(self, w: Matrix, table: np.ndarray) -> Matrix:
        """Return a stack like ``w`` whose matrices are at the addresses in ``table``, int64 (experts,), which is read
        each time an op runs: for experts that are moved in and out of memory."""
        return scattered(w, table)

    def record(self) -> Recording:
        """Return a backend that records ops as steps, to be run together later."""
        return Recorded(self.workers)

    # --- steps

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        return self._results.empty(shape, dtype)

    def temp(self, size: int) -> int:
        return self._desk.take(size)

    def run(self, steps: Sequence[Step], failure: str = "") -> None:
        size = max((step.work for step in steps), default=0)
        area = self.temp(size * self.workers.threads) if size else 0
        try:
            if self.workers.run(steps, area, size):
                raise IndexError(failure or "a number lies outside its range")
        finally:
            self._desk.clear()


class Recorded(Recording, Ops):
    """The ops of ``CPU``, recorded instead of run."""
