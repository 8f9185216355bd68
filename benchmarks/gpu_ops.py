"""The tests that compare every op and product with the reference, on the device; their processes share the cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ds4ref.environment import usable_cores
from ds4ref.kernels.cachedir import cache_dir

from .gpu_children import ROOT

if TYPE_CHECKING:
    from .gpu_part import Check

FILES = ("test_ops", "test_top", "cuda/test_products", "cuda/test_recording", "cuda/test_folding", "cuda/test_experts")
WITHOUT = ("cacheprovider", "benchmark")
"""Plugins to leave out: beside xdist the latter's warning is an error."""
NEEDED = ("pytest", "hypothesis")
MOST_WORKERS = 8


def measure(check: Check) -> None:
    """Run the part "ops" of ``gpu_check``: file by file, so that what hangs in one leaves the others' counts."""
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking:
        check.add(
            "tests", None, note=f"not run: no {' and no '.join(lacking)} (PYTHONPATH can name a folder with them)"
        )
        return
    workers = min(MOST_WORKERS, usable_cores())
    if find_spec("xdist") is None:
        check.add("tests side by side", None, note="no pytest-xdist: one after the other")
        workers = 1
    # The kernels and models that other parts use, instead of a second copy of them.
    environment = {"DS4_TEST_CACHE_DIR": str(cache_dir())} | os.environ
    environment |= {} if check.rehearsal else {"DS4_TEST_CUDA": "device"}
    for file in FILES:
        check.need(20)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", f"tests/kernels/{file}.py"]
        command += [f"-pno:{plugin}" for plugin in WITHOUT]
        command += ["-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning"]  # pytest-timeout need not be there
        if check.rehearsal:
            command += ["-k", "rms_norm"]
        elif workers > 1:
            command += ["-n", str(workers)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        count(check, file, done)


def count(check: Check, file: str, done: subprocess.CompletedProcess[str]) -> None:
    """Add the rows of one file; one in which pytest did not get to its last line has no test that passed."""
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", lines[-1])}
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            check.keep(line[:300])
    bar = None if check.rehearsal else 1  # of which most files have no test
    check.add(f"{file}: tests that passed", counts.get("passed", 0), "", bar, note=lines[-1].strip("= ")[:200])
    failed = counts.get("failed", 0) + counts.get("error", 0)
    check.add(f"{file}: tests that failed", failed, "", bar=0, better="lower")
