"""The table of the reference's checks is whole, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .checks import CHECKS

ROOT = Path(__file__).parents[2]


def test_all_of_them_are_listed():
    assert len(CHECKS) == 91


@pytest.mark.parametrize("name", CHECKS)
def test_where_a_check_is_covered(name):
    where = CHECKS[name]
    if where.startswith("see "):
        assert where[4:] in ("tools", "timelines", "store", "app")
        return
    named = re.findall(r"\b(\w+)\.(test_\w+)\.(test_\w+)", where)
    assert named or where.startswith("no: "), where
    for room, module, test in named:
        tree = ast.parse((ROOT / "tests" / room / f"{module}.py").read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == test for node in tree.body), (module, test)
