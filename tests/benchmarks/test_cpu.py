"""The command: one JSON document, every row of the table in it, each with a value or a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cpu
from benchmarks.goals import GOALS
from ds4ref.kernels.cpu import CPU
from ds4ref.nano import random_path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> list[dict]:
    """On the random model: the sections are the same, only smaller."""
    CPU().load()  # a quick run's minute includes compiling, if nobody has done it yet
    command = [sys.executable, "-m", "benchmarks.cpu", "--quick", "--json", "--model", random_path(), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_quick_json_has_valid_rows() -> None:
    found = run("--only", "decode", "nano", "prefill", "compile")
    rows = {row["item"]: row for row in found}
    assert all(row["run"]["quick"] is True and row["run"]["threads"] >= 1 for row in found)
    for row in rows.values():
        assert set(row) >= {"item", "value", "bar", "stretch", "unit", "better", "low", "high", "n", "note", "met"}
        if row["value"] is None:
            assert row["note"] and row["met"] is None
        else:
            assert row["low"] <= row["value"] <= row["high"] and row["n"] >= 1
    measured = {item for item, row in rows.items() if row["value"] is not None}
    assert {GOALS[name].item for name in ("decode", "nano", "prefill")} <= measured
    assert rows[GOALS["nano"].item]["bar"] == 500


def test_a_section_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(context) -> None:
        raise ZeroDivisionError("no")

    def works(context) -> None:
        context.add("help", [0.05, 0.06, 0.07])

    monkeypatch.setitem(cpu.SECTIONS, "nano", (broken, ("nano",), 0))
    monkeypatch.setitem(cpu.SECTIONS, "start", (works, ("help", "start"), 0))
    assert cpu.main(["--quick", "--json", "--model", random_path(), "--only", "nano", "start"]) == 0
    rows = {row["item"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["random model, decode"]["note"] == "failed: ZeroDivisionError: no"
    assert rows["ds4 --help"]["value"] == 0.06 and rows["ds4 --help"]["met"]
    assert rows[GOALS["start"].item]["note"] == "not measured"
