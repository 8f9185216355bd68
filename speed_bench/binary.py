"""A ds4-bench binary as target: it sweeps, we read its CSV as it comes and keep, repeat, compare and plot.

    ds4-bench --target "command:./ds4-bench -m ds4flash.gguf" --prompt-file book.txt -r 5

The command line is the binary's own; flags of the walk are added to it. Its rows keep whatever columns they have.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.errors import Cancelled, DataError, TargetError, UsageError
from ds4ref.runs.results import COLUMNS, parse_rows

from .samples import Sample


class Binary:
    """``command``: the binary with its own flags, as a shell would split it."""

    kind = "binary"

    def __init__(self, command: str):
        try:
            self.command = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"target command {command!r}: {error}") from None
        if not self.command:
            raise UsageError("a command target needs a command")
        self.name = Path(self.command[0]).name

    def identity(self) -> dict[str, Any]:
        """Kind and command line."""
        return {"kind": self.kind, "name": self.name, "command": shlex.join(self.command)}

    @property
    def model(self) -> Path | None:
        """The file that the command names with -m."""
        for flag, value in zip(self.command, self.command[1:], strict=False):
            if flag in ("-m", "--model"):
                return Path(value)
        return None


def flags(args: Namespace, prompt: Path) -> list[str]:
    """The walk in ds4-bench's flags; ``prompt`` is the file to read."""
    given = "--chat-prompt-file" if args.chat_prompt_file is not None else "--prompt-file"
    found = [given, str(prompt), "--ctx-start", args.ctx_start, "--ctx-max", args.ctx_max, "--ctx-alloc",
             args.ctx_alloc, "--step-incr", args.step_incr, "--gen-tokens", args.gen_tokens]  # fmt: skip
    if args.step_mul != 1:
        found += ["--step-mul", f"{args.step_mul:g}"]
    if args.chat_prompt_file is not None:
        found += ["--system", args.system]
    return [str(part) for part in found]


def walk(
    binary: Binary,
    options: Sequence[str],
    count: int,
    *,
    rep: int = 0,
    start: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Sample]:
    """One sample for every row that the binary writes, as it writes it; ``count`` are expected. TargetError with the
    last line of its stderr if it fails."""
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
                    yield _sample(row, rep, time.perf_counter() - start)
                    done += 1
                    if progress is not None:
                        progress(done, count)
                    if cancel():
                        break
            except DataError as error:
                problem = error
            finally:
                if cancel() or problem:
                    process.terminate()
        if cancel() and done < count:
            raise Cancelled(f"stopped while {binary.name} was running")
        if process.returncode > 0 or (done != count and not problem):
            stderr.seek(0)
            lines = [line for line in stderr.read().decode("utf-8", "replace").splitlines() if line.strip()]
            what = f"exited with {process.returncode}" if process.returncode else f"wrote {done} of {count} rows"
            raise TargetError(f"{binary.name} {what}" + (f": {lines[-1][:200]}" if lines else ""))
        if problem is not None:
            raise problem


def _sample(row: dict[str, Any], rep: int, at: float) -> Sample:
    known = {name: value for name, value in row.items() if value is not None}
    counts = dict.fromkeys(COLUMNS, 0) | {"kvcache_bytes": None}  # a size that is not told is not 0
    return {**counts, **known, "rep": rep, "at": round(at, 6)}
