"""Commands with --backend cuda where no kernel can run. ``lowering/test_lowered_models.py`` runs them on kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = {"ds4": "ds4ref.cli.ds4", "ds4-bench": "ds4ref.speed_bench.cli", "ds4-vectors": "ds4ref.test_vectors.cli"}


def run(tool: str, *argv: Any, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a process that sees no GPU."""
    command = [sys.executable, "-m", MODULES[tool], *map(str, argv)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return done


@pytest.mark.parametrize("tool", list(MODULES))
def test_without_a_device_one_line_says_so(tool: str, nano_path: str, tmp_path: Path) -> None:
    argv = {
        "ds4": ["-m", nano_path, "--cuda", "-p", "the sea", "-n", 1],
        "ds4-bench": ["-m", nano_path, "--cuda", "--frontiers", 3, "-n", 1, "--no-store"],
        "ds4-vectors": ["capture", tmp_path / "v", "--target", f"local:{nano_path}", "--backend", "cuda", "-n", 1],
    }[tool]
    done = run(tool, *argv, code=1)
    assert done.stdout == "" and not (tmp_path / "v").exists()
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{tool}: ") and "backend cuda cannot run here: no CUDA device: " in lines[0]


def test_devices_are_listed_where_there_are_none() -> None:
    lines = run("ds4", "--devices").stdout.splitlines()
    assert lines[0].startswith("cpu: ") and lines[-1].startswith("cuda: no CUDA device: ")


def test_gpu_memory_is_an_option_of_cuda(nano_path: str) -> None:
    done = run("ds4-bench", "-m", nano_path, "--frontiers", 2, "--no-store", "--gpu-memory", "1", code=2)
    assert "--gpu-memory is for --backend cuda" in done.stderr
