"""``ds4-bench many``: one sweep for every combination of a matrix, here or on a Dask cluster, resumable.

    # job.toml
    name = "quants"
    args = ["--ctx-max", "16384", "-r", "5"]
    [matrix]
    model = ["q2.gguf", "q4.gguf"]
    threads = [1, 2]

Every combination is a unit; each runs ``ds4-bench`` in a process of its own, wherever its worker is. Finished units
are kept in the run store, so that running the same job again does what is missing. Units that run at the same time on
one machine disturb each other: ``--workers`` and ``processes:N`` are for machines with cores to spare.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref.cli.common import Progress, say
from ds4ref.cli.options import Parser, integer
from ds4ref.errors import DataError, UsageError

PROG = "ds4-bench many"
FORBIDDEN = ("csv", "plot", "store", "no-store", "output", "o", "label", "arm", "help", "h", "version")


def parser() -> Parser:
    """Options of ``ds4-bench many``."""
    found = Parser(
        PROG,
        usage="ds4-bench many JOB.toml [options]",
        description="One sweep for every combination of a matrix; running it again does what is missing.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        unavailable={},
    )
    found.add_argument("job", metavar="JOB.toml", nargs="*", help="name, args and [matrix]; see below")
    found.add_argument("--scheduler", metavar="WHERE", help="processes:N, or tcp://HOST:PORT of a Dask scheduler "
                       "(threads of this process)")  # fmt: skip
    found.add_argument("--workers", metavar="N", type=integer(1, 1024), default=1, help="units at a time here (1)")
    found.add_argument("--store", metavar="FILE", help="run store (the user's own)")
    found.add_argument("-h", "--help", action="store_true", help="this text")
    return found


def many_command(argv: Sequence[str]) -> int:
    """Entry: 0 if every unit is done, 1 if one failed."""
    options = parser()
    args = options.parse(argv)
    if args.help:
        sys.stdout.write(options.format_help())
        return 0
    if len(args.job) != 1:
        raise UsageError("many needs one JOB.toml")
    name, units = read_job(args.job[0])
    from ds4ref.runs.fanout import fan_out
    from ds4ref.runs.store import Store

    with Store.open(args.store) as store, Progress("units") as progress:
        outcome = fan_out(
            name, units, run_unit, store, scheduler=args.scheduler, workers=args.workers, progress=progress
        )
    for unit, reason in outcome.failed.items():
        say(PROG, f"{unit}: {reason}")
    print(f"{name}: {len(outcome.done)} done, {len(outcome.before)} done before, {len(outcome.failed)} failed")
    print(json.dumps({"job": name, "done": outcome.done, "before": outcome.before, "failed": outcome.failed}))
    return 1 if outcome.failed else 0


def read_job(path: str) -> tuple[str, dict[str, list[str]]]:
    """The job's name, and the command line of each unit by its name. DataError names what is wrong."""
    try:
        with open(path, "rb") as file:
            job = tomllib.load(file)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    name, args, matrix = job.pop("name", Path(path).stem), job.pop("args", []), job.pop("matrix", {})
    if job:
        raise DataError(f"{path}: unknown entry {next(iter(job))!r}: there are name, args, [matrix]")
    if not isinstance(name, str) or not name:
        raise DataError(f"{path}: name must be a text")
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise DataError(f"{path}: args must be a list of texts")
    if not isinstance(matrix, dict):
        raise DataError(f"{path}: [matrix] must be a table")
    for key, values in matrix.items():
        if not isinstance(values, list) or not values or not all(_is_plain(value) for value in values):
            raise DataError(f"{path}: matrix.{key} must be a list of texts or numbers")
    for flag in (*matrix, *(arg.lstrip("-").partition("=")[0] for arg in args if arg.startswith("-"))):
        if flag in FORBIDDEN:
            raise DataError(f"{path}: {flag} is set for each unit and cannot be given")
    units = {}
    for values in itertools.product(*matrix.values()):
        chosen = dict(zip(matrix, values, strict=True))
        label = " ".join(f"{key}={value}" for key, value in chosen.items()) or name
        flags = [part for key, value in chosen.items() for part in (f"--{key}", str(value))]
        units[f"{label} {' '.join(args)}".strip()] = [*args, *flags, "--label", label]
    return name, units


def run_unit(argv: list[str]) -> dict[str, Any]:
    """One ``ds4-bench`` in a process of its own; its run, for the store of whoever asked. DataError with the last line
    of its stderr if it fails."""
    from ds4ref.runs.store import Store

    with tempfile.TemporaryDirectory(prefix="ds4-unit-") as folder:
        path = str(Path(folder, "unit.sqlite"))
        command = [sys.executable, "-m", "speed_bench.cli", *argv, "--store", path, "-o", "jsonl"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise DataError(lines[-1] if lines else f"ds4-bench ended with code {done.returncode}")
        with Store.open(path, create=False) as store:
            run, *more = store.runs(kind="bench")
            if more:
                raise DataError("a unit is one sweep, not several: put the list into [matrix]")
            rows = store.rows(run.id)
        return {"rows": len(rows), "run": {"kind": "bench", "facts": run.facts, "rows": rows, "label": run.label}}


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
