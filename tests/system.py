"""What tests want of the system, and skip without."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = ("/proc/self/fd", "/dev/fd")
"""The open files of this process, on Linux and on macOS."""


def open_files() -> int:
    """Return how many files this process has open; skip the test where the system does not list them."""
    for folder in FOLDERS:
        if os.path.isdir(folder):
            return len(os.listdir(folder))
    pytest.skip("this system does not list open files")


def need_mapped(*paths: Path) -> None:
    """Skip the test where these files cannot be mapped, all at once, as under an emulator or a limit of addresses."""
    maps: list[mmap.mmap] = []
    try:
        for path in paths:
            with path.open("rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, OverflowError) as error:
        pytest.skip(f"this system does not map {sum(path.stat().st_size for path in paths) >> 30} GiB: {error}")
    finally:
        for each in maps:
            each.close()


def peak_memory(code: str, path: Path) -> float:
    """Return the peak resident memory in bytes of a Python process that runs ``code`` on ``path``, its sys.argv[1].

    Linux only. ru_maxrss would start at the peak of the process that forks it.
    """
    peak = 'print(re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1])'
    script = f"import re, sys\n{code}\n{peak}"
    run = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return 1024 * float(run.stdout)
