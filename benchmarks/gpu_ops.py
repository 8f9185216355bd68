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

from .gpu_check import ROOT

if TYPE_CHECKING:
    from .gpu_check import Check

FILES = ("test_ops", "test_top", "cuda/test_products", "cuda/test_recording", "cuda/test_experts")


def measure(check: Check) -> None:
    """Run the part "ops" of ``gpu_check``: file by file, so that what hangs in one leaves the others' counts."""
    if any(find_spec(name) is None for name in ("pytest", "hypothesis", "xdist")):
        check.add("tests", None, note="not run: they need pytest, hypothesis and pytest-xdist")
        return
    # The kernels and models that other parts use, instead of a second copy of them.
    environment = {"DS4_TEST_CACHE_DIR": str(cache_dir())} | os.environ
    environment |= {} if check.rehearsal else {"DS4_TEST_CUDA": "device"}
    for file in FILES:
        check.need(20)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", f"tests/kernels/{file}.py", "-p", "no:benchmark"]
        command += ["-k", "rms_norm", "-n", "0"] if check.rehearsal else ["-n", str(min(8, usable_cores()))]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", lines[-1])}
        for line in lines:
            if line.startswith(("FAILED", "ERROR")):
                print(line[:300], file=sys.stderr)
        bar = None if check.rehearsal else 1  # a rehearsal runs only the tests of one op, which most files lack
        check.add(f"{file}: tests that passed", counts.get("passed", 0), "", bar, note=lines[-1].strip("= ")[:200])
        failed = counts.get("failed", 0) + counts.get("error", 0)
        check.add(f"{file}: tests that failed", failed, "", bar=0, better="lower")
