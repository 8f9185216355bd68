"""The command: one JSON document, every section in it, each row with a value or a reason."""

from __future__ import annotations

import json

import pytest

from benchmarks import cpu
from benchmarks.harness import row
from ds4ref.nano import random_path


def run(capsys, *sections: str) -> dict[str, dict]:
    """On the random model: the sections are the same, only smaller."""
    assert cpu.main(["--quick", "--json", "--model", random_path(), "--only", *sections]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return {each["item"]: each for each in json.loads(out)}


@pytest.mark.thorough
def test_quick_json_has_valid_rows(capsys) -> None:
    rows = run(capsys, "decode", "nano", "prefill")
    assert all(each["run"]["quick"] is True and each["run"]["threads"] >= 1 for each in rows.values())
    for each in rows.values():
        assert set(each) >= {"item", "value", "bar", "unit", "better", "low", "high", "n", "note", "met"}
        assert each["low"] <= each["value"] <= each["high"] and each["n"] >= 1
    assert len(rows) == 6 and rows["random model, decode"]["bar"] == 500


def test_a_section_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(context):
        yield row("before", [1.0])
        raise ZeroDivisionError("no")

    monkeypatch.setitem(cpu.SECTIONS, "nano", (broken, 0))
    monkeypatch.setitem(cpu.SECTIONS, "decode", (lambda context: iter([row("token", [0.05, 0.06, 0.07])]), 0))
    monkeypatch.setitem(cpu.SECTIONS, "growth", (broken, 1e9))
    rows = run(capsys, "nano", "decode", "growth")
    assert rows["nano"]["note"] == "failed: ZeroDivisionError: no" and rows["before"]["value"] == 1.0
    assert rows["token"]["value"] == 0.06 and rows["growth"]["note"].startswith("skipped: ")
