"""A ds4-bench binary as a source: it runs the sweep; its CSV is read row by row, then stored and compared as usual.

    ds4-bench --target "command:./ds4-bench -m ds4flash.gguf" --prompt-file book.txt -r 5

The command line is the binary's own; flags of the sweep are appended. Its rows keep all their columns.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.errors import Cancelled, DataError, TargetError
from ds4ref.runs.columns import Row
from ds4ref.runs.results import COLUMNS, parse_rows
from ds4ref.targets import Cancellation
from ds4ref.targets.command import CommandTarget

from .plan import BenchTarget, Plan
from .sources import FOREIGN, Opening, Source
from .sweep import Progress


class BinarySource(Source):
    """A ds4-bench binary as a source of rows; ``target`` holds its command line."""

    pausable = False  # it cannot be paused between its rows

    def __init__(self, target: CommandTarget, plan: Plan, options: Sequence[str], facts: dict[str, Any]):
        self.target, self.plan, self.options, self.facts = target, plan, options, facts

    @classmethod
    def open(cls, opening: Opening, planned: BenchTarget) -> BinarySource:
        """Return the source of a target; writes the text to a file and hashes the model file that it names."""
        target = opening.target(planned)
        assert isinstance(target, CommandTarget)
        command = target.command
        named = (value for flag, value in zip(command, command[1:], strict=False) if flag in ("-m", "--model"))
        model = next(map(Path, named), None)
        facts: dict[str, Any] = {"name": None, "file": model.name if model else target.name}
        if model is not None and model.is_file() and (checksum := opening.sha256(model)):
            facts["sha256"] = checksum
        folder = opening.stack.enter_context(tempfile.TemporaryDirectory(prefix="ds4-bench-"))
        file = Path(folder, "prompt.txt")
        file.write_bytes(opening.prompt.text().encode("utf-8", "surrogateescape"))
        about = {"target": target.identity(), "backend": "binary", "model": facts, **FOREIGN}
        return cls(target, opening.plan, flags(opening.plan, str(file)), about)

    def walk(self, rep: int, done: int, progress: Progress | None, cancel: Cancellation) -> Iterator[Row]:
        """Run one sweep, which always starts at the first depth; yield its rows without the first ``done``."""
        for number, row in enumerate(walk(self.target, self.options, self.plan.rows, progress, cancel)):
            if number >= done:
                yield row


def flags(plan: Plan, file: str) -> list[str]:
    """Return the plan's sweep as ds4-bench flags; ``file``: path of the text to prefill."""
    assert plan.steps is not None
    start, last, step, factor = plan.steps
    options = ["--chat-prompt-file" if plan.chat else "--prompt-file", file, "--ctx-start", start, "--ctx-max", last,
               "--ctx-alloc", plan.context, "--step-incr", step, "--gen-tokens", plan.gen_tokens]  # fmt: skip
    if factor != 1:
        options += ["--step-mul", f"{factor:g}"]
    if plan.chat:
        options += ["--system", plan.system]
    return [str(part) for part in options]


def walk(
    binary: CommandTarget,
    options: Sequence[str],
    count: int,
    progress: Progress | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Run a binary with ``options``; yield each of the ``count`` rows as soon as it is printed.

    ``progress`` is called with (rows done, ``count``); ``cancel`` returns whether to stop.

    Raises TargetError with the last line of the binary's stderr if it fails or does not print ``count`` rows.
    """
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                [*binary.command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise TargetError(f"cannot run {binary.command[0]}: {error.strerror}") from None
        done, problem = 0, None
        with process:
            assert process.stdout is not None
            try:
                for row in parse_rows(process.stdout, binary.name):
                    known = {name: value for name, value in row.items() if value is not None}
                    # an unknown size is not 0
                    yield dict.fromkeys(COLUMNS, 0) | {"kvcache_bytes": None} | known | {"at": time.perf_counter()}
                    done += 1
                    if progress is not None:
                        progress(done, count)
                    if cancel():
                        break
            except DataError as error:
                problem = error
            except GeneratorExit:  # the caller stopped reading
                process.terminate()
                raise
            finally:
                if cancel() or problem:
                    process.terminate()
        if cancel() and done < count:
            raise Cancelled(f"stopped while {binary.name} was running")
        if process.returncode > 0 or (done != count and not problem):
            stderr.seek(0)
            lines = [line for line in stderr.read().decode("utf-8", "replace").splitlines() if line.strip()]
            problem_text = (
                f"exited with {process.returncode}" if process.returncode else f"wrote {done} of {count} rows"
            )
            raise TargetError(f"{binary.name} {problem_text}" + (f": {lines[-1][:200]}" if lines else ""))
        if problem is not None:
            raise problem
