"""Measures with an external ds4-bench binary, such as ds4's: the binary runs the sweep, and we read its CSV output.

    ds4-bench --target "command:./ds4-bench -m ds4flash.gguf" --prompt-file book.txt -r 5

After "command:" follows the binary's own command line; options for the depths are appended to it. Its rows are stored
and compared as usual, with all their columns.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.errors import Cancelled, DataError, TargetError
from ds4ref.runs.columns import Row
from ds4ref.runs.results import COLUMNS, parse_rows
from ds4ref.targets import Cancellation
from ds4ref.targets.command import CommandTarget, complaint

from .plan import BenchTarget, Plan
from .sources import FOREIGN, Opening, Source
from .sweep import Progress


class BinarySource(Source):
    """A ds4-bench binary as a source of rows.

    target    holds the binary's command line
    options   options for the depths, appended to the command line
    facts     metadata for the run's record
    """

    pausable = False  # it cannot be paused between its rows

    def __init__(self, target: CommandTarget, plan: Plan, options: Sequence[str], facts: dict[str, Any]):
        self.target, self.plan, self.options, self.facts = target, plan, options, facts

    @classmethod
    def open(cls, opening: Opening, planned: BenchTarget) -> BinarySource:
        """Return the source of rows for a planned target.

        Write the prompt text to a temporary file, and hash the model file if the command line names one (``-m``).
        """
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
        """Run the binary once and yield its rows as it prints them, without the first ``done``.

        Those are measured again, because the binary always starts at the first depth. Raises TargetError with the last
        line of the binary's stderr if it fails or does not print all rows.
        """
        count, name, number, problem = self.plan.rows, self.target.name, 0, None
        with tempfile.TemporaryFile() as stderr:
            try:
                process = subprocess.Popen(
                    [*self.target.command, *self.options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=stderr, encoding="utf-8", errors="replace",
                )  # fmt: skip
            except OSError as error:
                raise TargetError(f"cannot run {self.target.command[0]}: {error.strerror}") from None
            with process:
                assert process.stdout is not None
                try:
                    for number, row in enumerate(parse_rows(process.stdout, name), 1):
                        known = {column: value for column, value in row.items() if value is not None}
                        unknown = dict.fromkeys(COLUMNS, 0) | {"kvcache_bytes": None}  # an unknown size is not 0
                        if number > done:
                            yield unknown | known | {"at": time.perf_counter()}
                        if progress is not None:
                            progress(number, count)
                        if cancel():
                            process.terminate()
                            break
                except DataError as error:
                    problem = error
                    process.terminate()
                except GeneratorExit:  # the caller stopped reading
                    process.terminate()
                    raise
            if cancel() and number < count:
                raise Cancelled(f"stopped while {name} was running")
            if process.returncode > 0 or (number != count and not problem):
                stderr.seek(0)
                why = f"exited with {process.returncode}" if process.returncode else f"wrote {number} of {count} rows"
                raise TargetError(f"{name} {why}{complaint(stderr.read())}")
            if problem is not None:
                raise problem


def flags(plan: Plan, file: str) -> list[str]:
    """Return the command-line options that make a ds4-bench binary run the plan; ``file`` has the text to prefill."""
    assert plan.steps is not None
    start, last, step, factor = plan.steps
    options = ["--chat-prompt-file" if plan.chat else "--prompt-file", file, "--ctx-start", start, "--ctx-max", last,
               "--ctx-alloc", plan.context, "--step-incr", step, "--gen-tokens", plan.gen_tokens]  # fmt: skip
    if factor != 1:
        options += ["--step-mul", f"{factor:g}"]
    if plan.chat:
        options += ["--system", plan.system]
    return [str(part) for part in options]
