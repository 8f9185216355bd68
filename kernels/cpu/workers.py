"""The worker pool: Python threads parked in compiled code, which run jobs made of steps.

A call packs its steps into memory and enters compiled code; there the calling thread works as thread 0 and workers
join it (``tasks/sync.py`` has the protocol). One job runs at a time; callers on other threads wait for their turn. A
step with no more items than its chunk, or a pool of one thread, never touches the workers.

Results do not depend on the number of threads: chunks only decide who computes an item, never how.

Fork: a child starts with no workers and makes its own on first use. Forking while another thread runs a job is as
unsafe as it always is with threads. Exit: workers are stopped and joined before the interpreter goes away.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading

import numpy as np

from .abi import (
    BLOCK_BYTES,
    POOL_BYTES,
    POOL_COUNT,
    POOL_STEPS,
    POOL_STOP,
    POOL_THREADS,
    STEP_BYTES,
    STEP_HEADER,
    Task,
)
from .library import available_cores, library

MAX_STEPS = 16
MAX_THREADS = 256

Step = tuple[Task, int, int, tuple]
"""(task, items, chunk, values of its argument block)"""

_PY_OBJECT = object.__basicsize__
_word = ctypes.c_int64.from_address


def _array_data(array: np.ndarray) -> int:
    return _word(id(array) + _PY_OBJECT).value


def _checked_address():
    """``address(array)``: where its first element is.

    ``array.ctypes.data`` costs a microsecond. NumPy's ABI fixes the data pointer as the first field of an array
    object, which is ten times faster to read; the slow way serves where that does not hold.
    """
    probe = np.zeros(3, np.float32)[1:]
    if probe.ctypes.data == _array_data(probe):
        return _array_data
    return lambda array: array.ctypes.data


address = _checked_address()


def aligned(size: int, alignment: int = 128) -> np.ndarray:
    """``size`` zero bytes whose address is a multiple of ``alignment``."""
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


def _not_loaded(*_: int) -> None:
    raise RuntimeError("the compiled kernels are not loaded")


class Pool:
    """``threads`` threads, the calling one included."""

    def __init__(self, threads: int):
        self._threads = threads
        self._run = self._work = self._ticks = _not_loaded
        self._fresh()

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._memory = aligned(POOL_BYTES + MAX_STEPS * (STEP_BYTES + BLOCK_BYTES))
        self._base = self._memory.ctypes.data
        self._steps = POOL_BYTES
        self._blocks = POOL_BYTES + MAX_STEPS * STEP_BYTES
        self._words = memoryview(self._memory[:POOL_BYTES]).cast("q")
        self._wake = threading.Event()
        self._asleep = 0
        self._workers: list[threading.Thread] = []

    @property
    def threads(self) -> int:
        """Number of threads that share a job."""
        return self._threads

    def resize(self, threads: int) -> None:
        """Use ``threads`` threads from now on; ValueError unless 1 .. 256."""
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be 1..{MAX_THREADS}, not {threads}")
        with self._lock:
            if threads != self._threads:
                self._stop()
                self._threads = threads

    def _start(self) -> None:
        self._words[POOL_STOP // 8] = 0
        for number in range(1, self._threads):
            worker = threading.Thread(target=self._worker, args=(number,), name=f"ds4ref-{number}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _worker(self, number: int) -> None:
        base, words, wake = self._base, self._words, self._wake
        while not words[POOL_STOP // 8]:
            self._work(base, number)
            if words[POOL_STOP // 8]:
                return
            # Sleeping is decided without a lock: a worker that misses a job costs speed, never a result.
            wake.clear()
            self._asleep = 1
            wake.wait()

    def _stop(self) -> None:
        self._words[POOL_STOP // 8] = 1
        self._wake.set()
        for worker in self._workers:
            while worker.is_alive():
                self._wake.set()
                worker.join(0.01)
        self._workers.clear()

    def close(self) -> None:
        """Stop the workers; the pool starts them again when it is used again."""
        with self._lock:
            self._stop()

    def load(self) -> None:
        """Load the compiled code, compiling it if this machine has none; otherwise the first ``run`` does."""
        code = library()
        for task in Task.registry.values():
            task.address = code.address(task.name)
        self._work = code.function("pool_work", 2)
        self._ticks = code.function("read_ticks", 1)
        self._run = code.function("pool_run", 1)

    def run(self, *steps: Step) -> None:
        """Run the steps one after the other, each spread over the threads."""
        if self._run is _not_loaded:
            self.load()
        with self._lock:
            memory, base, blocks = self._memory, self._base, self._blocks
            place = self._steps
            for task, items, chunk, values in steps:
                task.pack(memory, blocks, *values)
                STEP_HEADER.pack_into(memory, place, task.address, base + blocks, items, chunk, 1)
                blocks += BLOCK_BYTES
                place += STEP_BYTES
            self._execute(base + self._steps, len(steps))

    def run_prepared(self, steps: int, count: int) -> None:
        """Run ``count`` steps that lie ready in memory at ``steps`` (``program.Program`` makes them)."""
        with self._lock:
            self._execute(steps, count)

    def ticks(self) -> int:
        """Now, on the clock that steps are timed with (its rate is the processor's affair)."""
        if self._ticks is _not_loaded:
            self.load()
        out = ctypes.c_int64()
        self._ticks(ctypes.addressof(out))
        return out.value

    def _execute(self, steps: int, count: int) -> None:
        words = self._words
        words[POOL_STEPS // 8] = steps
        words[POOL_COUNT // 8] = count
        words[POOL_THREADS // 8] = self._threads
        if self._threads > 1:
            if not self._workers:
                self._start()
            elif self._asleep:
                self._asleep = 0
                self._wake.set()
        self._run(self._base)


POOL = Pool(available_cores())
atexit.register(POOL.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL._fresh)


def load() -> None:
    """Make the kernels ready now (compiling them takes a while, once) instead of at the first op."""
    POOL.load()


def set_threads(count: int) -> None:
    """Use ``count`` threads for every op from now on (ValueError unless 1 .. 256)."""
    POOL.resize(count)


def threads() -> int:
    """Threads that ops are spread over; at first, as many as the process has cores."""
    return POOL.threads
