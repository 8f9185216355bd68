"""Start-up times of commands, measured from outside the process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from .context import Context
from .harness import Row, clocked, interleave, row

DS4 = [sys.executable, "-m", "ds4ref.cli.ds4"]


def process_seconds(command: list[str]) -> float:
    """Return the wall time in seconds of a process to its first byte on stdout; it must end well."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise RuntimeError(f"{' '.join(command)} printed nothing")
        spent = time.perf_counter() - started
        process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return spent


def measure(context: Context) -> Iterator[Row]:
    """Yield the rows of ``ds4 --help`` and of a first token."""
    first_token = [*DS4, "-p", "The", "-n", "1", "--ctx", "64", "-t", str(context.threads)]
    targets = {
        "python": lambda: process_seconds([sys.executable, "-c", "print()"]),
        "help": lambda: process_seconds([*DS4, "--help"]),
        "start": lambda: process_seconds(first_token),
    }
    samples = interleave(targets, 5 if context.quick else 15)
    note = f"an empty Python process takes {statistics.median(samples['python']):.3f} s"
    yield row("ds4 --help", samples["help"], "s", 0.1, "lower", note)
    note = "file, kernels, tokenizer, prefill of the prompt, first byte out"
    yield row("warm process start to first token, embedded model", samples["start"], "s", 0.8, "lower", note)


def cold_compile(context: Context) -> Iterator[Row]:
    """Yield the row of a start with an empty kernel cache."""

    def compiled() -> None:
        command = [sys.executable, "-c", "from ds4ref.kernels.cpu import CPU; CPU().load()"]
        with tempfile.TemporaryDirectory(prefix="ds4ref-cold-") as home:
            subprocess.run(command, env=os.environ | {"DS4_CACHE_DIR": home}, check=True, capture_output=True)

    samples = [] if context.quick else interleave({"compile": clocked(compiled)}, 3, warm=False)["compile"]
    yield row("cold compile of all kernels", samples, "s", 30, "lower", "not in a quick run" if context.quick else "")
