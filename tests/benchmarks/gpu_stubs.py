"""Parts that go wrong, for the tests of ``gpu_check``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from benchmarks.gpu_check import Check


def stub_device(check: Check) -> None:
    check.tell({"facts": {"device": "a stub"}})


def refused(check: Check) -> None:
    check.tell({"facts": {"refusal": "no CUDA device: none was made"}})


def good(check: Check) -> None:
    check.add("before", 1)
    print("no message")
    check.add("after", 0.5, "", 0.25)


def missed(check: Check) -> None:
    check.add("difference", float("nan"), "", 1.0, "lower")


def crashes(check: Check) -> None:
    check.add("before", 1)
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(check: Check) -> None:
    os._exit(7)


def raises(check: Check) -> None:
    raise RuntimeError("out\nof luck")


def hangs(check: Check) -> None:
    """With a process of its own, whose number is the row's value."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    check.add("process", other.pid)
    time.sleep(600)


def late(check: Check) -> None:
    check.need(1e9)
