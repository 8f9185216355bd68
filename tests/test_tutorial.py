"""The tutorials: their blocks run in order, in one folder, and say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(page: str, folder: Path) -> tuple[str, list[str]]:
    """The page, and what each of its shell blocks printed, messages last."""
    text = (ROOT / "docs" / "tutorial" / page).read_text()
    (folder / "bin").mkdir()
    modules = {"ds4-vectors": "ds4ref.test_vectors.cli", "ds4-bench": "ds4ref.speed_bench.cli"}
    for name, module in modules.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        script.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    before, printed = "", []
    for kind, code in BLOCK.findall(text):
        before += code if kind == "python" else ""
        command = [sys.executable, "-c", before] if kind == "python" else ["sh", "-ec", code]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.stderr.count("Traceback") == 0, done.stderr
        if kind == "sh":
            printed.append(done.stdout + done.stderr)
    return text, printed


@pytest.mark.thorough
def test_first_verdict(tmp_path):
    text, (broken, right) = run("first-verdict.md", tmp_path)
    shown = re.search(r"^    (verdict .*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    for line in shown.group(1).splitlines():
        assert line.strip() in broken, broken
    assert re.search(r"^verdict +exact$", right, re.MULTILINE), right


@pytest.mark.thorough
def test_first_sweep(tmp_path):
    _, (_, verdict) = run("first-sweep.md", tmp_path)
    lines = (tmp_path / "mine.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["256", "512", "768", "1024"]
    assert (tmp_path / "mine.json").exists() and "</svg>" in (tmp_path / "mine.svg").read_text()
    # on a busy machine the comparison is refused, and says why
    assert re.search("faster|slower|same within|unclear|mixed|not compared with .*busy", verdict), verdict
