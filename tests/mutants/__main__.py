"""Mutation testing: put one-line mistakes into a copy of the tree, one at a time, and see whether the tests notice.

Our own, because mutmut forks inside one pytest process (compiled kernels and their threads do not survive that) and
cosmic-ray knows one test command and edits the working tree; neither draws a seeded sample from one room.
A survivor is a missing test, or changes nothing that matters: which one, a reader decides. It is tried against the
tests of its own room alone, so that a few of the rest would be noticed elsewhere.

    python -m tests.mutants --room targets --count 20 --seed 1
    python -m tests.mutants --room ds4ref/costs.py --tests tests/test_costs.py
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

ROOT = Path(__file__).resolve().parents[2]

# Name: (glob patterns of files, tests). An edit below kernels/cpu or kernels/formats compiles the kernels anew, for a
# minute, where a test needs them.
SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "*.egg-info")
ROOMS = {
    "session": (
        "ds4ref/session/*.py ds4ref/decode.py",
        "tests/session tests/test_decode.py tests/archs/test_chunks.py",
    ),
    "archs": ("ds4ref/archs/**/*.py", "tests/test_decode.py tests/session tests/archs"),
    "text": ("ds4ref/text/*.py", "tests/text"),
    "sampling": ("ds4ref/sampling.py", "tests/test_sampling.py"),
    "generate": ("ds4ref/generate.py", "tests/test_generate.py tests/cli/test_oneshot.py tests/cli/test_chat.py"),
    "weights": ("ds4ref/weights/*.py", "tests/weights"),
    "formats": ("kernels/formats/*.py", "tests/kernels/test_formats.py"),
    "kernels": ("kernels/cpu/*.py", "tests/kernels"),
    # what needs no compiled kernel; tests/kernels/cuda/lowering/faults.py has mistakes in the others
    "cuda": ("kernels/cuda/graph/*.py kernels/cuda/driver/*.py", "tests/kernels/cuda"),
    "reference": ("kernels/reference/*.py", "tests/kernels/test_pitfalls.py tests/kernels/test_cpu_ops.py"),
    "targets": ("ds4ref/targets/*.py", "tests/targets tests/speed_bench/test_targets.py"),
    "apis": (
        "ds4ref/server/apis/*.py ds4ref/server/scoring.py",
        "tests/server/test_fields.py tests/server/test_chat.py tests/server/test_messages.py "
        "tests/server/test_responses.py tests/server/test_completions.py",
    ),
    "agent": ("ds4ref/agent/*.py ds4ref/cli/agent*.py", "tests/agent"),
    "costs": ("ds4ref/costs.py ds4ref/peaks.py", "tests/test_costs.py tests/speed_bench/test_model.py"),
    "speed_bench": ("speed_bench/*.py", "tests/speed_bench"),
    "runs": ("ds4ref/runs/*.py ds4ref/runs/store/*.py", "tests/runs"),
    "reports": ("reports/*.py", "tests/reports"),
    "test_vectors": ("test_vectors/*.py", "tests/test_vectors"),
    "answers": (
        "eval/compare.py eval/keep.py eval/regrade.py eval/report.py eval/view.py",
        "tests/eval/test_compare.py tests/eval/test_keep.py tests/eval/test_regrade.py tests/eval/test_view.py",
    ),
    "grading": (
        "eval/grading.py eval/corpus.py eval/ds4_grader.py",
        "tests/eval/test_grading.py tests/eval/test_ds4_grader.py",
    ),
    "imports": (
        "eval/imports/*.py eval/cli_import.py",
        "tests/eval/test_imports_of_c.py tests/eval/test_imports_of_packs.py tests/eval/test_import_command.py",
    ),
}


def passes(tree: Path, tests: list[str], timeout: float) -> bool:
    """Whether ``tests`` pass in ``tree``; a run that does not end in time does not. Their output is in tree.log."""
    settings = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "DS4_TEST_CACHE_DIR": f"{tree}.cache"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
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
        own = [str(found.relative_to(tree)) for test in tests for found in (tree / test).glob(f"test_{path.stem}.py")]
        path.write_bytes(text)
        yield f"{path.relative_to(tree)}:{line}: {old}  ->  {new}", passes(tree, [*own, *tests], timeout)
        path.write_bytes(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--room", help=f"one of {', '.join(ROOMS)}, or one file of a room (default: all rooms)")
    parser.add_argument("--count", type=int, default=20, help="mutants a room (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (default 0)")
    parser.add_argument("--tests", nargs="+", help="instead of the room's tests")
    args = parser.parse_args()
    survivors, tried = [], 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=SKIPPED)
        try:
            for room, (patterns, tests) in ROOMS.items():
                files = sorted(path for pattern in patterns.split() for path in tree.glob(pattern))
                if args.room not in (None, room):
                    files = [path for path in files if path == tree / args.room]
                wanted = args.tests or [test for test in tests.split() if (tree / test).exists()]
                for what, lives in try_files(tree, files, wanted, args.count, args.seed) if files else ():
                    tried += 1
                    survivors += [what] * lives
                    print("survived" if lives else "caught  ", what, flush=True)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    print(f"\n{tried - len(survivors)} of {tried} caught; survivors:", *survivors, sep="\n  ")
    return 0 if tried else 2


if __name__ == "__main__":
    sys.exit(main())
