"""A thread that waits long for another, as when that one reads weights from disk, leaves its core alone.

How long it spins and yields is told in nanoseconds: polls take ten times as long on one processor as on another.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ds4ref.kernels.cpu import workers
from ds4ref.kernels.cpu.abi import POOL_BYTES, POOL_NAP, POOL_SPIN, SLOT
from ds4ref.kernels.cpu.tasks.sync import wait_until

THREADS = Path("/proc/self/task")
NAPS = 200

needs_counts = pytest.mark.skipif(not THREADS.exists(), reason="only Linux tells how often a thread slept")


def limited(spin: int, nap: int) -> np.ndarray:
    """The control block of a pool with these limits, in ticks."""
    pool = np.zeros(POOL_BYTES // SLOT, np.int64)
    pool[POOL_SPIN // SLOT], pool[POOL_NAP // SLOT] = spin, nap
    return pool


class Counted:
    """Waits of this thread that another one ends; ``slept`` is that of the last one."""

    def __init__(self, pool: np.ndarray):
        self.pool, self.counter = pool, np.zeros(1, np.int64)
        self._status = THREADS / str(threading.get_native_id()) / "status"
        wait_until(pool.ctypes.data, self.counter.ctypes.data, 0)  # compiled

    def sleeps(self) -> int:
        match = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", self._status.read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1])

    def wait(self, enough: Callable[[int], bool]) -> None:
        """Wait until ``enough`` of the sleeps so far, or for two minutes of processor time."""

        def release() -> None:
            while not enough(self.sleeps() - before) and time.process_time() < given_up:
                time.sleep(0.001)
            self.counter[0] = 7

        before, given_up = self.sleeps(), time.process_time() + 120
        other = threading.Thread(target=release)
        other.start()
        wait_until(self.pool.ctypes.data, self.counter.ctypes.data, 7)
        self.slept = self.sleeps() - before
        other.join()


@needs_counts
def test_a_long_wait_is_slept_away():
    """Whoever naps leaves the core by himself, and does little between two naps; who spins or yields never does."""
    ticks = workers.tick_rate()
    waits = Counted(limited(*(int(ticks * workers.WAITING[word]) for word in (POOL_SPIN, POOL_NAP))))
    waits.wait(lambda slept: slept >= NAPS)
    assert waits.slept >= NAPS
