"""The worker pool: Python threads parked in compiled code, which run jobs made of steps.

A call packs its steps into memory and enters compiled code; there the calling thread works as thread 0 and the workers
join it (``tasks/sync.py`` has the protocol). One job runs at a time; callers on other threads wait their turn. A job in
which no step has more items than its chunk size is run by the calling thread alone.

Results do not depend on the number of threads: chunks decide which thread computes an item, never how.

Fork: a child starts with no workers and makes its own on first use. Forking while another thread runs a job is as
unsafe as it always is with threads. Exit: workers are stopped and joined before the interpreter shuts down.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache

import numpy as np

from ..system import available_cores, prefer_performance_cores
from . import abi
from .abi import Entry, Step, Task
from .library import entry_address, groups_for, library, prepare

MAX_STEPS = 16
MAX_THREADS = 256

WAITING = {abi.POOL_SPIN: 200_000, abi.POOL_NAP: 1_000_000, abi.POOL_IDLE_NAP: 500_000, abi.POOL_IDLE: 40_000_000}
"""Nanoseconds after which a thread that waits for a step yields its core (SPIN) and naps (NAP), and after which an idle
worker naps (IDLE_NAP) and sleeps in Python (IDLE). These are times rather than numbers of polls, because a poll takes
ten times as long on one processor as on another.

Idle workers stay awake for as long as Python needs to choose a token, because a nap would delay the next token.
"""

Task.find = entry_address
_PY_OBJECT = object.__basicsize__
_word = ctypes.c_int64.from_address


def _array_data(array: np.ndarray) -> int:
    return _word(id(array) + _PY_OBJECT).value


def _checked_address():
    """Return a fast function ``address(array)`` that returns the address of an array's first element.

    ``array.ctypes.data`` costs a microsecond. NumPy's ABI fixes the data pointer as the first field of an array object,
    which is ten times faster to read; fall back to the slow way where that does not hold.
    """
    probe = np.zeros(3, np.float32)[1:]
    if probe.ctypes.data == _array_data(probe):
        return _array_data
    return lambda array: array.ctypes.data


address = _checked_address()


def aligned(size: int, alignment: int = 128) -> np.ndarray:
    """Return ``size`` zero bytes at an address that is a multiple of ``alignment``."""
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


def _not_loaded(*_: int) -> None:
    raise RuntimeError("the compiled kernels are not loaded")


class Workers:
    """A pool of ``threads`` threads that run jobs; the thread that calls ``run`` is one of them."""

    def __init__(self, threads: int):
        self.threads = threads
        self._run = self._work = _not_loaded
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._memory = aligned(abi.POOL_BYTES + MAX_STEPS * (abi.STEP_BYTES + abi.BLOCK_BYTES))
        self._base = self._memory.ctypes.data
        self._steps = abi.POOL_BYTES
        self._blocks = abi.POOL_BYTES + MAX_STEPS * abi.STEP_BYTES
        self._words = memoryview(self._memory[: abi.POOL_BYTES]).cast("q")
        self._wake = threading.Event()
        self._asleep = 0
        self._workers: list[threading.Thread] = []

    def _start(self) -> None:
        self._words[abi.POOL_STOP // 8] = 0
        for word, nanoseconds in WAITING.items():
            self._words[word // 8] = int(nanoseconds * tick_rate())
        for number in range(1, self.threads):
            worker = threading.Thread(target=self._worker, args=(number,), name=f"ds4ref-{number}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _worker(self, number: int) -> None:
        prefer_performance_cores()
        base, words, wake = self._base, self._words, self._wake
        while not words[abi.POOL_STOP // 8]:
            self._work(base, number)
            if words[abi.POOL_STOP // 8]:
                return
            # No lock around going to sleep: a worker that misses a job costs speed, never a result.
            wake.clear()
            self._asleep = 1
            wake.wait()

    def _stop(self) -> None:
        self._words[abi.POOL_STOP // 8] = 1
        self._wake.set()
        for worker in self._workers:
            while worker.is_alive():
                self._wake.set()
                worker.join(0.01)
        self._workers.clear()

    def close(self) -> None:
        """Stop the workers; the next use starts them again."""
        with self._lock:
            self._stop()

    def load(self, progress: Callable[[str], None] | None = None, formats: Collection[str] = ()) -> None:
        """Load the compiled code, compiling it if this machine has none; without this call the first ``run`` does so.

        progress: called with a line of text now and then while it compiles (None: print the lines to stderr)
        formats: storage formats and other groups of kernels (``library.TASKS``) that will be needed, which are then
        compiled together with the rest
        """
        prepare(groups_for(formats), progress)
        if self._run is not _not_loaded:
            return
        code = library("engine", progress)
        self._work = code.function("pool_work", 2)
        self._run = code.function("pool_run", 1)

    def run(self, steps: Sequence[Step], area: int = 0, size: int = 0) -> bool:
        """Run the steps in order, each divided among the threads; return whether one met an index out of range.

        area, size: address of the threads' work areas, and bytes of each
        """
        if self._run is _not_loaded:
            self.load()
        with self._lock:
            memory, base, block, place = self._memory, self._base, self._blocks, self._steps
            self._words[abi.POOL_ERROR // 8] = 0
            before = 0
            for number, step in enumerate(steps):
                entry = Entry(step.items, step.chunk, 1 + before, 1, number + 1)
                before += step.items > 0
                step.write(memory, place, base, block, entry, area, size, base + abi.POOL_ERROR)
                block += abi.BLOCK_BYTES
                place += abi.STEP_BYTES
            self._execute(base + self._steps, len(steps))
            return self._words[abi.POOL_ERROR // 8] != 0

    def run_prepared(self, steps: int, count: int) -> None:
        """Run ``count`` steps already laid out in memory at address ``steps``, as ``Recording`` writes them."""
        with self._lock:
            self._execute(steps, count)

    def _execute(self, steps: int, count: int) -> None:
        words = self._words
        words[abi.POOL_STEPS // 8] = steps
        words[abi.POOL_COUNT // 8] = count
        words[abi.POOL_THREADS // 8] = self.threads
        if self.threads > 1:
            if not self._workers:
                self._start()
            elif self._asleep:
                self._asleep = 0
                self._wake.set()
        self._run(self._base)


def read_ticks() -> int:
    """Return the time in ticks of the clock that compiled code reads (the processor's own counter)."""
    out = ctypes.c_int64()
    _tick_reader()(ctypes.addressof(out))
    return out.value


@cache
def _tick_reader() -> Callable[..., None]:
    return library("engine").function("read_ticks", 1)


@cache
def tick_rate() -> float:
    """Return the ticks per nanosecond of the clock that compiled code reads; 0.0 if it stands still.

    The rate is measured once, in two milliseconds, because the rate that AArch64 reports (CNTFRQ_EL0) is whatever
    firmware wrote there, and x86 reports none.
    """

    def pair() -> tuple[int, int, int]:
        before, ticks, after = time.perf_counter_ns(), read_ticks(), time.perf_counter_ns()
        return after - before, before, ticks

    _, first, first_ticks = min(pair() for _ in range(5))  # the fastest, which was not interrupted
    time.sleep(0.002)
    _, last, last_ticks = min(pair() for _ in range(5))
    return max(0.0, (last_ticks - first_ticks) / (last - first))


_SHARED: dict[int, Workers] = {}
_SHARED_LOCK = threading.Lock()


def shared(threads: int | None = None) -> Workers:
    """Return the pool of ``threads`` threads (None: as many as cores) that all backends of this process share; raise
    ValueError unless there are 1 to 256 threads."""
    count = available_cores() if threads is None else threads
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"threads must be 1..{MAX_THREADS}, not {count}")
    with _SHARED_LOCK:
        return _SHARED.setdefault(count, Workers(count))


def _close_all() -> None:
    for pool in list(_SHARED.values()):
        pool.close()


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for pool in _SHARED.values():
        pool._reset()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
