"""Races in shared memory: compute-sanitizer's racecheck on one token of the embedded model.

python -m benchmarks.gpu_races     that token alone, which is what compute-sanitizer is given to run
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from .gpu_children import ROOT

if TYPE_CHECKING:
    from .gpu_part import Check

SAID = "the token after 5 is "
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, from PATH or $CUDA_HOME/bin; None if there is none."""
    home = os.environ.get("CUDA_HOME")
    beside = [os.path.join(home, "bin")] if home else []
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *beside]))


def measure(check: Check) -> None:
    """Run the part "races" of ``gpu_check``."""
    if check.rehearsal:
        first_choice()
        check.add("hazards of one token", None, note="a rehearsal has no GPU to check; the token was computed")
        return
    sanitizer = find_sanitizer()
    if sanitizer is None:
        check.add("hazards of one token", None, note="no compute-sanitizer in PATH or $CUDA_HOME/bin")
        return
    command = [sanitizer, "--tool", "racecheck", sys.executable, "-m", "benchmarks.gpu_races"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    hazards = counted(done.stdout)
    for line in done.stdout.splitlines():
        if "hazard" in line:
            check.keep(line.strip("= ")[:300])
    check.add("hazards of one token", hazards, "", bar=0, better="lower", note="racecheck, shared memory")


def counted(output: str) -> int:
    """Return the hazards that racecheck found; raise RuntimeError unless it ended and the token was computed."""
    found = SUMMARY.search(output)
    if found is None or SAID not in output:  # a sanitizer that refuses the device finds no hazard, either
        raise RuntimeError(f"compute-sanitizer did not get through: {' '.join(output.split())[-300:]}")
    return int(found[1])


def first_choice() -> int:
    """Return the likeliest token after token 5 of the embedded model, computed on the GPU in mode ds4."""
    from ds4ref.engine import Engine
    from ds4ref.nano import embedded_path

    with Engine.open(embedded_path(), backend="cuda", numerics="ds4") as engine:
        return int(engine.session(4).eval(5).argmax())


if __name__ == "__main__":
    print(f"{SAID}{first_choice()}")
