"""The worker pool: no lost wake-up, same results for any number of threads, no deadlock, Ctrl-C, fork, clean exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4ref.kernels.cpu import tasktable as t
from ds4ref.kernels.cpu.abi import LINE, Step
from ds4ref.kernels.cpu.workers import Workers, address, aligned

from . import cpu
from .test_cpu_ops import normal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = cpu.threads
    yield
    cpu.threads = before


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """A test that fails halfway must not leave its process computing."""
    yield
    while STARTED:
        run = STARTED.pop()
        run.kill()
        run.communicate()


def script(body: str, **options) -> subprocess.Popen:
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(body)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    STARTED.append(run)
    return run


def tiny_step(x: np.ndarray, out: np.ndarray, chunk: int = 1):
    return Step(t.ROUND_F16, x.size, chunk, (address(x), address(out)))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_ten_thousand_tiny_jobs(threads: int):
    cpu.threads = threads
    x = normal(1, 7)
    want = x.astype(np.float16).astype(np.float32)
    for _ in range(10_000 if threads < 8 else 1_000):
        out = np.zeros(7, np.float32)
        cpu.workers.run([tiny_step(x, out)])
        assert np.array_equal(out, want)


def test_a_second_pool_in_the_process():
    cpu.threads = 2
    other = Workers(2)
    other.load()
    x, a, b = normal(1, 20_000), np.zeros(20_000, np.float32), np.zeros(20_000, np.float32)
    want = x.astype(np.float16).astype(np.float32)

    def many(pool: Workers, out: np.ndarray) -> None:
        for _ in range(300):
            pool.run([tiny_step(x, out, 64)])

    threads = [threading.Thread(target=many, args=pair) for pair in ((cpu.workers, a), (other, b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    other.close()
    assert np.array_equal(a, want) and np.array_equal(b, want)


def test_workers_sleep_when_idle_and_wake():
    cpu.threads = 2
    x, out = normal(1, 100_000), np.zeros(100_000, np.float32)
    cpu.workers.run([tiny_step(x, out, 1000)])
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05
    out[:] = 0
    cpu.workers.run([tiny_step(x, out, 1000)])
    assert np.array_equal(out, x.astype(np.float16).astype(np.float32))


def test_thread_count_is_checked():
    for count in (0, -1, 257):
        with pytest.raises(ValueError, match=r"1\.\.256"):
            cpu.threads = count


def test_control_c_between_ops():
    run = script(
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # behind nohup or & it is inherited as ignored
        import numpy as np
        from ds4ref.kernels.cpu import CPU
        cpu = CPU(4)
        x = np.ones((64, 4096), np.float32)
        cpu.swiglu(x, x, 10.0)
        print("ready", flush=True)
        try:
            while True:
                cpu.swiglu(x, x, 10.0)
        except KeyboardInterrupt:
            print("stopped")
        """
    )
    assert run.stdout is not None and run.stdout.readline() == "ready\n"
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    try:
        out, err = run.communicate(timeout=300)
    finally:
        run.kill()  # or it would go on for ever
    assert (out, run.returncode) == ("stopped\n", 0), err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_and_exit():
    """A child made by fork has its own workers; both processes end without being asked."""
    run = script(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking with threads, rightly
        import numpy as np
        from ds4ref.kernels.cpu import CPU
        cpu = CPU(3)
        x = np.ones((64, 4096), np.float32)
        want = cpu.swiglu(x, x, 10.0)
        child = os.fork()
        same = np.array_equal(cpu.swiglu(x, x, 10.0), want)
        if child == 0:
            os._exit(0 if same else 1)
        print(os.waitpid(child, 0)[1], same)
        """
    )
    out, err = run.communicate(timeout=60)
    assert (out, run.returncode) == ("0 True\n", 0), err


def test_a_worker_that_starts_late_joins_nothing_that_is_not_open():
    """The first job of a pool may be too small to share; its worker then starts while it runs, or long after."""
    x, out = normal(1, 64), np.zeros(64, np.float32)
    for _ in range(200):
        pool = Workers(3)
        pool.load()
        pool.run([tiny_step(x, out, 64)])
        out[:] = -7
        time.sleep(0.001)
        assert (out == -7).all()
        pool.close()


def test_lines_of_different_writers_begin_where_the_processor_has_lines():
    """Offsets say nothing in memory that begins anywhere."""
    pool = Workers(1)
    assert pool._base % LINE == 0 and (pool._base + pool._steps) % LINE == 0
    assert all(aligned(size).ctypes.data % LINE == 0 for size in (1, 64, 100, 128, 5000))
