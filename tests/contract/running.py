"""Run a command of pyproject.toml in this process, as its console script would."""

from __future__ import annotations

import importlib
import io
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(command: str, *argv: str, stdin: bytes = b"") -> Ran:
    """Call a command's main with ``argv``; its exit code, stdout and stderr."""
    module, name = SCRIPTS[command].split(":")
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n", write_through=True) for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = getattr(importlib.import_module(module), name)(list(argv))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdin = before
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
