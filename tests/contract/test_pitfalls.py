"""Every known pitfall has a test that ``make test`` runs, or a reason: ``pitfalls.toml`` is the table."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads(Path(__file__).with_name("pitfalls.toml").read_text("utf-8"))
COUNTS = TABLE.pop("rows")
UNRUN = {"skip", "skipif", "needs_golden", "oracle", "peers", "thorough", "slow", "cuda", "gpu", "network"}
"""Marks of a test that ``make test`` may leave out as a whole; those of single cases stand in their parameters."""


@cache
def names_of_marks(file: str) -> dict[str, set[str]]:
    """Return by test of a file the names in its decorators, and in the file's own marks."""
    body = ast.parse((ROOT / file).read_text("utf-8")).body
    marks = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]

    def named(expressions: list[ast.expr]) -> set[str]:
        plain = [one for one in expressions if "parametrize" not in ast.unparse(one)]
        return {node.attr if isinstance(node, ast.Attribute) else node.id for one in plain for node in ast.walk(one)
                if isinstance(node, ast.Attribute | ast.Name)}  # fmt: skip

    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {test.name: named([*marks, *test.decorator_list]) for test in tests}


def test_every_row_has_a_test_or_a_reason() -> None:
    rows = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert list(TABLE) == rows and len(rows) == 130
    for row, entry in TABLE.items():
        assert list(entry) in (["tests"], ["why"]) and all(entry.values()), row


def test_every_test_is_there_and_runs() -> None:
    for row, entry in TABLE.items():
        for node in entry.get("tests", ()):
            file, _, name = node.partition("::")
            assert (ROOT / file).exists() and name in names_of_marks(file), f"{row}: no test {node}"
            assert not names_of_marks(file)[name] & UNRUN, f"{row}: {node} is not run by make test"
