"""Parts that go wrong, for the tests of ``gpu_check``: each writes a row first, and most get no further.

Those with processes of their own write their numbers into the file that DS4_STUB_PROCESSES names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu_part import Check

SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def pipe() -> int:
    """The pipe that messages are written to."""
    return int(sys.argv[sys.argv.index("--rows") + 1])


def device(check: Check) -> None:
    check.tell({"facts": {"device": "a stub", "capability": [9, 0]}})


def header(check: Check) -> None:
    """Say what the file says already: of the run, and of the device."""
    found = json.loads(Path(os.environ["DS4_STUB_FILE"]).read_text())
    said = found.keys() >= {"created", "command", "commit", "machine", "versions", "rehearsal"}
    check.tell({"facts": {"device": "a stub", "capability": [9, 0], "header": said, "then": found.get("device")}})


def states(check: Check) -> None:
    """Say what the file says of the parts, and of the device."""
    found = json.loads(Path(os.environ["DS4_STUB_FILE"]).read_text())
    check.keep({"device": found["device"], "states": {name: part["state"] for name, part in found["parts"].items()}})
    check.add("read", 1.0)


def refused_late(check: Check) -> None:
    raise OSError("the driver\nfell over")


def refused(check: Check) -> None:
    check.tell({"facts": {"device": None, "refusal": "no CUDA device: none was made"}})


def good(check: Check) -> None:
    check.add("before", 1.0, "ms")
    check.add("after", 0.5, "", 1.0, "lower")


def before(work: Callable[[Check], None]) -> Callable[[Check], None]:
    """Write a row, then go wrong."""

    def part(check: Check) -> None:
        check.add("before", 1.0, "ms")
        work(check)

    return part


@before
def hangs(check: Check) -> None:
    time.sleep(600)


@before
def hangs_with_others(check: Check) -> None:
    """Ignore what can be ignored, and start a process that does, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    with open(os.environ["DS4_STUB_PROCESSES"], "a") as file:
        file.write(f"{os.getpid()} {other.pid}\n")
    time.sleep(600)


@before
def leaves_others(check: Check) -> None:
    """End well, but leave a process that has everything open which this one has."""
    if not (pid := os.fork()):
        time.sleep(600)
        os._exit(0)
    with open(os.environ["DS4_STUB_PROCESSES"], "a") as file:
        file.write(f"{pid}\n")


@before
def hangs_at_its_end(check: Check) -> None:
    """Do everything, then keep the interpreter from ending."""
    import atexit

    check.add("after", 0.5)
    atexit.register(time.sleep, 600)


@before
def crashes(check: Check) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@before
def exits(check: Check) -> None:
    os._exit(7)


@before
def raises(check: Check) -> None:
    raise RuntimeError("out\nof luck")


@before
def chatters(check: Check) -> None:
    """Print what looks like a message where people read."""
    print('{"row": {"item": "no row"}}\n{"ended": "done"}\nno JSON', flush=True)
    check.add("after", 0.5)


@before
def babbles(check: Check) -> None:
    """Write what is no message where messages are due: not JSON, and a row that is none."""
    os.write(pipe(), b'no JSON\n{"row": {"item": "no row"}}\n{"neither": 1}\n')
    check.add("after", 0.5)


@before
def is_wrong(check: Check) -> None:
    check.add("after", float("nan"), "", 1.0, "lower")
    check.add("difference", 2.0, "", 1.0, "lower")


@before
def breaks_off(check: Check) -> None:
    """Stop half way through a line."""
    os.write(pipe(), b'{"row": {"item": "half')
    os._exit(0)


def tells_its_time(check: Check) -> None:
    check.add("seconds", check.budget.seconds)


def tells_its_path(check: Check) -> None:
    check.keep(os.environ["PYTHONPATH"].split(os.pathsep))


def runs_late(check: Check) -> None:
    check.add("before", 1.0, "ms")
    check.need(1e6)


def counts_cores(check: Check) -> None:
    check.add("cores", len(os.sched_getaffinity(0)))
    check.keep(sorted(os.sched_getaffinity(0)))


def meets(check: Check) -> None:
    """Wait for another part that runs at the same time."""
    with open(os.environ["DS4_STUB_PROCESSES"], "a") as file:
        file.write(f"{os.getpid()}\n")
    while len(Path(os.environ["DS4_STUB_PROCESSES"]).read_text().split()) < 2:
        time.sleep(0.01)
    check.add("met", 1.0)
