"""A thread that waits long for another, as when that one reads weights from disk, leaves its core alone.

How long it spins and yields is told in nanoseconds: polls take ten times as long on one processor as on another.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.kernels.cpu import workers
from ds4ref.kernels.cpu.abi import POOL_BYTES, POOL_IDLE, POOL_IDLE_NAP, POOL_NAP, POOL_SPIN, SLOT
from ds4ref.kernels.cpu.tasks.sync import wait_until

THREADS = Path("/proc/self/task")
NAPS = 200
FOR_EVER = 1 << 62

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


def clocks(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    """Clocks that agree: each look takes 80 ns, of which one in three is interrupted for 3 us."""
    now, looks = [10**12], [0]

    def look() -> int:
        looks[0] += 1
        now[0] += 80 if looks[0] % 9 else 3080
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += int(1e9 * seconds) + 57_000

    monkeypatch.setattr(workers, "time", SimpleNamespace(perf_counter_ns=look, sleep=sleep))
    monkeypatch.setattr(workers, "read_ticks", lambda: int(rate * look()))


@pytest.mark.parametrize("rate", [0.024, 1.0, 2.1, 0.0], ids=["M1", "newer Macs", "x86", "stands still"])
def test_the_rate_of_the_clock_is_measured(monkeypatch: pytest.MonkeyPatch, rate: float):
    clocks(monkeypatch, rate)
    assert workers.tick_rate.__wrapped__() == pytest.approx(rate, rel=1e-3)


def test_a_pool_knows_its_limits_in_ticks(monkeypatch: pytest.MonkeyPatch):
    pool = workers.Workers(2)
    pool.load()
    monkeypatch.setattr(workers, "tick_rate", lambda: 0.024)
    pool._start()
    pool.close()
    words = (POOL_SPIN, POOL_NAP, POOL_IDLE_NAP, POOL_IDLE)
    assert [pool._words[word // SLOT] for word in words] == [4800, 24_000, 12_000, 960_000]
