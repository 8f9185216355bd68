"""A thread that waits long for another, as when that one reads weights from disk, leaves its core alone."""

from __future__ import annotations

import threading
import time

import numpy as np

from ds4ref.kernels.cpu import workers
from ds4ref.kernels.cpu.abi import POOL_BYTES, POOL_NAP, POOL_SPIN, SLOT
from ds4ref.kernels.cpu.tasks.sync import wait_until


def test_a_long_wait_is_slept_away() -> None:
    pool, counter = np.zeros(POOL_BYTES // SLOT, np.int64), np.zeros(1, np.int64)
    for word in (POOL_SPIN, POOL_NAP):
        pool[word // SLOT] = int(workers.tick_rate() * workers.WAITING[word])
    wait_until(pool.ctypes.data, counter.ctypes.data, 0)  # compiled
    other = threading.Thread(target=lambda: (time.sleep(1), counter.fill(7)))
    other.start()
    before = time.thread_time()
    wait_until(pool.ctypes.data, counter.ctypes.data, 7)
    assert time.thread_time() - before < 0.3
    other.join()
