"""A thread that waits long for another, as when that one reads weights from disk, leaves its core alone."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ds4ref.kernels.cpu.tasks.sync import wait_until

THREADS = Path("/proc/self/task")
NAPS = 200


@pytest.mark.skipif(not THREADS.exists(), reason="only Linux tells how often a thread slept")
def test_a_long_wait_is_slept_away():
    """Whoever naps leaves the core by himself, and does little between two naps; who spins or yields never does."""
    counter = np.zeros(1, np.int64)
    wait_until(counter.ctypes.data, 0)  # compiled
    status = THREADS / str(threading.get_native_id()) / "status"

    def slept() -> int:
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def release() -> None:
        """After so many naps; or after two minutes of processor time without."""
        while slept() < before + NAPS and time.process_time() < given_up:
            time.sleep(0.001)
        counter[0] = 7

    before, given_up = slept(), time.process_time() + 120
    other = threading.Thread(target=release)
    other.start()
    busy = time.thread_time()
    wait_until(counter.ctypes.data, 7)
    busy = time.thread_time() - busy
    other.join()
    assert slept() >= before + NAPS
    assert busy < 0.2, "a millisecond before the first nap, some microseconds between two"
