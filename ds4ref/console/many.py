"""``TOOL many``: one command for every combination of a matrix, here or on a Dask cluster, resumable.

    # job.toml, for ds4-bench many
    name = "quants"
    args = ["--ctx-max", "16384", "-r", "5"]
    [matrix]
    model = ["q2.gguf", "q4.gguf"]
    threads = [1, 2]

    # job.toml, for ds4-vectors many
    args = ["capture", "{out}", "--prompts", "prompts.jsonl"]
    [matrix]
    target = ["http://one:8000/v1", "http://two:8000/v1"]

Every combination is a unit. Each runs the tool in a process of its own, wherever its worker is, on the files that are
there; its runs come back into the run store, and what it wrote below {out} into a folder of the unit. What is done is
done: running the same job again does what is missing. Units that run at the same time on one machine disturb each
other's measurements: --workers is for endpoints, and for machines with cores to spare.

examples:
  ds4-bench many job.toml
  ds4-vectors many job.toml --workers 8 -o served
  ds4-bench many job.toml --scheduler tcp://10.0.0.1:8786
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, UsageError
from .common import EXIT_INTERRUPTED, Interrupt, Progress, say
from .flags import add
from .options import Parser

if TYPE_CHECKING:
    from ..runs.fanout import Outcome
    from ..runs.store import Store

OUT = "{out}"
FILES_LIMIT = 256 << 20
"""Maximum total bytes of files that a unit sends back; larger ones belong in a folder shared by the machines."""
SET_HERE = ("store", "no-store", "label", "help", "h", "version")


@dataclass(frozen=True)
class Tool:
    """A command that can run units of a job.

    prog     name of the program
    module   its module, run with ``python -m``
    files    flags that name output files
    json     flags that make it print a last line of JSON
    """

    prog: str
    module: str
    files: tuple[str, ...] = ()
    json: tuple[str, ...] = ()


def many(tool: Tool, argv: Sequence[str]) -> int:
    """Run the job named by the arguments; return the exit code.

    0 if every unit is done and passed its gate, 1 otherwise, 130 after Ctrl-C.
    """
    options = _parser(tool)
    args = options.parse(argv)
    if args.help:
        sys.stdout.write(options.format_help())
        return 0
    if len(args.job) != 1:
        raise UsageError("give one JOB.toml")
    name, labels = read_job(args.job[0], tool)
    how = {"module": tool.module, "prog": tool.prog}
    units = {unit: {**how, "argv": [*unit_argv, *tool.json]} for unit, (_, unit_argv) in labels.items()}
    from ..runs.fanout import fan_out
    from ..runs.store import Store

    prog = f"{tool.prog} many"
    with Store.open(args.store) as store, Interrupt() as interrupt, Progress("units") as progress:
        home = Folders(Path(args.output or name), {unit: label for unit, (label, _) in labels.items()}, store, name)

        def tell(line: str) -> None:
            progress.clear()
            say(prog, line)

        outcome = fan_out(
            name, units, run_unit, store, scheduler=args.scheduler, workers=args.workers, receive=home.receive,
            progress=progress, tell=tell, cancel=interrupt,
        )  # fmt: skip
    return _conclude(prog, name, outcome, args)


def _parser(tool: Tool) -> Parser:
    parser = Parser(
        f"{tool.prog} many",
        usage=f"{tool.prog} many JOB.toml [options]",
        description="Run one command for every combination of a matrix; run it again to resume.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        unavailable={},
    )
    parser.add_argument("job", metavar="JOB.toml", nargs="*", help="name, args and [matrix]; see below")
    add(parser, "--scheduler")
    add(parser, "--workers", default=1, help="local worker processes, without --scheduler (1)")
    add(parser, "--output", metavar="DIR", help="folder that replaces {out} in the job (the job's name)")
    add(parser, "--store")
    add(parser, "--json")
    add(parser, "--help")
    return parser


def _conclude(prog: str, name: str, outcome: Outcome, args: Namespace) -> int:
    for unit, reason in outcome.failed.items():
        say(prog, f"{unit}: {reason}")
    below = [unit for unit, result in outcome.results.items() if not result.get("passed", True)]
    if args.json:
        print(json.dumps({"job": name, "done": outcome.done, "before": outcome.before, "failed": outcome.failed,
                          "left": outcome.remaining, "not_passed": below, "results": outcome.results}))  # fmt: skip
    else:
        for unit, result in outcome.results.items():
            runs = ", ".join(map(str, result.get("runs", ()))) or "no run"
            print(f"{'not passed' if unit in below else 'done':10}  {runs:8}  {unit}")
        counts = f"{len(outcome.done)} done, {len(outcome.before)} done before, {len(outcome.failed)} failed"
        print(f"{name}: {counts}" + (f", {len(outcome.remaining)} left" if outcome.remaining else ""))
    if outcome.remaining:
        say(prog, "stopped; run the same command again to resume")
        return EXIT_INTERRUPTED
    return 1 if outcome.failed or below else 0


# ------------------------------------------------------------------------------------------------------------ jobs


def read_job(path: str, tool: Tool) -> tuple[str, dict[str, tuple[str, list[str]]]]:
    """Read a job file; return (name, units), with ``units`` from a unit's name to its label and arguments.

    Raises DataError naming the invalid part of the file.
    """
    try:
        with open(path, "rb") as file:
            job = tomllib.load(file)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    name, args, matrix = job.pop("name", Path(path).stem), job.pop("args", []), job.pop("matrix", {})
    if job:
        raise DataError(f"{path}: unknown entry {next(iter(job))!r}: allowed: name, args, [matrix]")
    if not isinstance(name, str) or not name:
        raise DataError(f"{path}: name must be a string")
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise DataError(f"{path}: args must be a list of strings")
    if not isinstance(matrix, dict):
        raise DataError(f"{path}: [matrix] must be a table")
    for key, values in matrix.items():
        if not isinstance(values, list) or not values or not all(_is_plain(value) for value in values):
            raise DataError(f"{path}: matrix.{key} must be a list of strings or numbers")
    _refuse(path, args, matrix, tool)
    units = {}
    for chosen_values in itertools.product(*matrix.values()):
        chosen = dict(zip(matrix, chosen_values, strict=True))
        label = " ".join(f"{key}={value}" for key, value in chosen.items()) or name
        flags = [part for key, value in chosen.items() for part in (f"--{key}", str(value))]
        units[f"{label} {' '.join(args)}".strip()] = label, [*args, *flags]
    return name, units


def _refuse(path: str, args: Sequence[str], matrix: Mapping[str, Any], tool: Tool) -> None:
    """Raise DataError for flags set per unit, and for files that every unit would overwrite."""
    flags = [(key, str(value)) for key, values in matrix.items() for value in values]
    for arg, after in itertools.zip_longest(args, args[1:], fillvalue=""):
        flag, equals, value = arg.lstrip("-").partition("=")
        if arg.startswith("-"):
            flags.append((flag, value if equals else after))
    for flag, value in flags:
        if flag in SET_HERE:
            raise DataError(f"{path}: {flag} is set per unit and cannot be used in a job")
        if flag in tool.files and OUT not in value:
            raise DataError(f"{path}: every unit would write the same --{flag} file: use {OUT}/...")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------------------------- one unit


def run_unit(unit: Mapping[str, Any]) -> dict[str, Any]:
    """Run one unit as a process; return its run records, the files it wrote below {out}, and whether it passed.

    ``unit`` holds "module", "prog" and "argv". Raises DataError with the last line of the process's stderr if it
    fails; a gate that was not passed is not a failure.
    """
    from ..runs.store import Store

    with tempfile.TemporaryDirectory(prefix="ds4-unit-") as folder:
        out, unit_store = Path(folder, "out"), str(Path(folder, "runs.sqlite"))
        out.mkdir()
        with Store.open() as own, Store.open(unit_store) as store:
            lent = _lend(own, store)
        command = [sys.executable, "-m", "ds4ref.console.unit", unit["module"]]
        command += [part.replace(OUT, str(out)) for part in unit["argv"]]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "DS4_DATA_DIR": folder}, start_new_session=True,
        )  # fmt: skip
        try:
            written, errors = _streams(process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
        result = _last_json(written)
        passed = result.get("passed", True) is not False
        if process.returncode and (process.returncode != 1 or passed):
            lines = [line for line in errors.splitlines() if line.strip()]
            raise DataError(lines[-1] if lines else f"{unit['prog']} ended with code {process.returncode}")
        with Store.open(unit_store, create=False) as store, Store.open() as own:
            _lend(store, own, lent)
            runs = [
                {"kind": run.kind, "facts": run.facts, "rows": store.rows(run.id), "label": run.label}
                for run in reversed(store.runs())
                if run.kind != "peaks"
            ]
        return {"passed": passed, "found": result, "runs": runs, "files": _files(out)}


def _streams(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Read both outputs to their ends; ``communicate`` would close the input, which is the lifeline, first."""
    import threading

    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    with process.stdout as stream:  # type: ignore[union-attr]
        written = stream.read()
    reader.join()
    process.stderr.close()  # type: ignore[union-attr]
    return written.decode("utf-8", "replace"), errors[0].decode("utf-8", "replace")


def _lend(source: Store, goal: Store, known: int = 0) -> int:
    """Copy peaks beyond the first ``known`` and digests of large files, which take minutes, to another store.

    Returns how many peaks ``source`` has.
    """
    goal.remember(source.digests())
    peaks = list(reversed(source.runs(kind="peaks")))
    for run in peaks[known:]:
        goal.add("peaks", run.facts, source.rows(run.id), label=run.label)
    return len(peaks)


def _last_json(text: str) -> dict[str, Any]:
    """Return the last line as a JSON object; empty if it is none."""
    lines = text.rstrip().rsplit("\n", 1)
    try:
        value = json.loads(lines[-1])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below ``folder`` by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in paths)
    if total > FILES_LIMIT:
        raise DataError(f"{total >> 20} MiB of files to send back is too much: write them to a shared folder")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class Folders:
    """The folders for the files of units; only units that wrote files have one.

    Raises UsageError if a folder exists but its unit is not recorded as done.
    """

    def __init__(self, root: Path, labels: Mapping[str, str], store: Store, job: str):
        from ..runs.store.units import Job

        self.root, self.labels = root, labels
        self.names = {unit: re.sub(r"[^\w.=+-]+", "_", label).strip("._") or "unit" for unit, label in labels.items()}
        if len(set(self.names.values())) < len(self.names):
            self.names = {unit: f"{i}-{name}" for i, (unit, name) in enumerate(self.names.items(), 1)}
        done = {unit.name for unit in Job(store, job).units().values() if unit.done}
        for unit, name in self.names.items():
            if unit not in done and (root / name).exists():
                raise UsageError(
                    f"{root / name} exists, but its unit is unfinished: move it, or choose another --output"
                )

    def receive(self, unit: str, result: dict[str, Any]) -> dict[str, Any]:
        """Write a unit's files into its folder; return the result without files, with its runs named after the unit."""
        label, several = self.labels[unit], len(result["runs"]) > 1
        for run in result["runs"]:
            run["label"] = f"{label}: {run['label']}" if several and run["label"] else label
        files = result.pop("files", {})
        if files:
            goal = self.root / self.names[unit]
            self.root.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{goal.name}.", dir=self.root))
            try:
                for name, content in files.items():
                    path = beside / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                beside.chmod(0o755)
                beside.rename(goal)
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)
                raise
            result["folder"] = str(goal)
        return result
