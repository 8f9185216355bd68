"""A thread that waits long for another, as when that one reads weights from disk, leaves its core alone."""

from __future__ import annotations

import threading
import time

import numpy as np

from ds4ref.kernels.cpu.tasks.sync import wait_until


def test_a_long_wait_costs_little_processor_time():
    counter = np.zeros(1, np.int64)
    address = counter.ctypes.data
    wait_until(address, 0)  # compiled

    def release() -> None:
        time.sleep(0.3)
        counter[0] = 7

    other = threading.Thread(target=release)
    other.start()
    started, busy = time.monotonic(), time.thread_time()
    wait_until(address, 7)
    busy, waited = time.thread_time() - busy, time.monotonic() - started
    other.join()
    assert waited > 0.2
    assert busy < 0.3 * waited
