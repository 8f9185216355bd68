"""Start-up times of commands, measured from outside the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from .context import Context
from .timing import interleave

DS4 = [sys.executable, "-m", "ds4ref.cli.ds4"]


def process_seconds(command: list[str], until_output: bool = False) -> float:
    """Return the wall time in seconds of a process, to its end or (``until_output``) to its first byte on stdout."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if until_output:
            if not process.stdout.read(1):
                raise RuntimeError(f"{' '.join(command)} printed nothing")
            spent = time.perf_counter() - started
        process.stdout.read()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return spent if until_output else time.perf_counter() - started


def measure(context: Context) -> None:
    """Measure the rows "help" and "start" of the CPU table."""
    first_token = [*DS4, "-p", "The", "-n", "1", "--ctx", "64", "-t", str(context.threads)]
    arms = {
        "python": lambda: process_seconds([sys.executable, "-c", "pass"]),
        "help": lambda: process_seconds([*DS4, "--help"]),
        "start": lambda: process_seconds(first_token, until_output=True),
    }
    samples = interleave(arms, 5 if context.quick else 15)
    bare = sorted(samples["python"])[len(samples["python"]) // 2]
    context.add("help", samples["help"], f"an empty Python process takes {bare:.3f} s")
    context.add("start", samples["start"], "file, kernels, tokenizer, prefill of the prompt, first byte out")


def cold_compile(context: Context) -> None:
    """Measure the row "compile" of the CPU table: start-up with an empty kernel cache."""
    if context.quick:
        context.skip("compile", "not in a quick run")
        return
    command = [sys.executable, "-c", "from ds4ref.kernels.cpu import CPU; CPU().load()"]
    samples = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="ds4ref-cold-") as home:
            environment = {**os.environ, "DS4_CACHE_DIR": home}
            started = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            samples.append(time.perf_counter() - started)
    context.add("compile", samples)
