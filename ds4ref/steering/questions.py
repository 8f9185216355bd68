"""What steering costs in right answers: ``ds4-eval`` as a process of its own, which opens the model steered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import DataError
from ..runs.stats import Interval, unknown


def score(path: str, half: str, scale: float, count: int, options: Sequence[str]) -> Interval:
    """Return the share of right answers to the first ``count`` questions, answered without thinking.

    path     file of directions, which act at scale ``scale`` on ``half`` ("attn" or "ffn")
    options  further options of ds4-eval: the model, and how it is opened

    Raise DataError with the last line that ds4-eval says if it fails.
    """
    steered = ["--dir-steering-file", path, f"--dir-steering-{half}", repr(scale)] if scale else []
    with TemporaryDirectory() as folder:
        log = str(Path(folder) / "log.jsonl")
        command = [sys.executable, "-m", "ds4ref.eval.cli", "--limit", str(count), "--nothink", "--plain", "--json",
                   "--no-store", "--output", log, *steered, *options]  # fmt: skip
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"scale {scale:g}: {reason}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["interval"] is None:
        return unknown(float("nan"), 0, "no answer graded")
    return Interval(result["score"], result["interval"][0], result["interval"][1], result["n"], "ds4-eval")
