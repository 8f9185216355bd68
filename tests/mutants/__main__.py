"""Mutation testing: put one-line mistakes into a copy of the tree, one at a time, and see whether the tests notice.

Our own, because mutmut forks inside one pytest process (compiled kernels and their threads do not survive that) and
cosmic-ray knows one test command and edits the working tree; neither draws a seeded sample from one room.
A survivor is a missing test, or changes nothing that matters: which one, a reader decides. It is tried against the
tests that name its module, then against all of its room (``rooms``), so that a few would be noticed elsewhere.

    python -m tests.mutants --room targets --count 20 --seed 1
    python -m tests.mutants --room ds4ref/costs.py --tests tests/test_costs.py
    python -m tests.mutants --count 8                  every room, and a table of scores
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .edits import drawn
from .rooms import ROOMS, modules, narrow

ROOT = Path(__file__).resolve().parents[2]
MARKS = "not oracle and not peers and not gpu and not cuda and not slow and not network"  # make test and make thorough
SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "*.egg-info")


def passes(tree: Path, tests: list[str], timeout: float) -> bool:
    """Whether ``tests`` pass in ``tree``; a run that does not end in time does not. Their output is in tree.log."""
    settings = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "DS4_TEST_CACHE_DIR": f"{tree}.cache"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKS, *tests]
    with open(f"{tree}.log", "wb") as log:
        options = {"stdout": log, "stderr": log, "start_new_session": True}
        run = subprocess.Popen(command, cwd=tree, env=os.environ | settings, **options)
    try:
        return run.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:  # also on Ctrl-C: the tests and whatever they started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def try_files(tree: Path, files: list[Path], tests: list[str], count: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Each mutant as a line, and whether it lived. SystemExit if the tests fail without any."""
    start = time.monotonic()
    if not passes(tree, tests, 3600):
        sys.exit(Path(f"{tree}.log").read_text()[-2000:] + "\nmutants: the tests fail without any mutant")
    timeout = 3 * (time.monotonic() - start) + 30
    for path, line, text in drawn(files, count, seed):
        before = path.read_bytes()
        old, new = (source.decode().splitlines()[line - 1].strip() for source in (before, text))
        own = narrow(tree, path, tests)
        path.write_bytes(text)
        lives = (not own or passes(tree, own, timeout)) and passes(tree, tests, timeout)
        yield f"{path.relative_to(tree)}:{line}: {old}  ->  {new}", lives
        path.write_bytes(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--room", help=f"one of {', '.join(ROOMS)}, or one file of a room (default: all rooms)")
    parser.add_argument("--count", type=int, default=20, help="mutants a room (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (default 0)")
    parser.add_argument("--tests", nargs="+", help="instead of the room's tests")
    args = parser.parse_args()
    survivors: list[str] = []
    scores: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=SKIPPED)
        try:
            for room, files in modules(tree).items():
                if args.room not in (None, room):
                    files = [path for path in files if path == tree / args.room]
                wanted = args.tests or ROOMS[room][1].split()
                for what, lives in try_files(tree, files, wanted, args.count, args.seed) if files else ():
                    scores.setdefault(room, []).append(not lives)
                    survivors += [what] * lives
                    print("survived" if lives else "caught  ", what, flush=True)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    for room, caught in scores.items():
        print(f"{room:<14}{sum(caught):>4} of {len(caught)} caught")
    print("survivors:", *survivors, sep="\n  ")
    return 0 if scores else 2


if __name__ == "__main__":
    sys.exit(main())
