"""The table of the reference's checks is whole, and every test that it names is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from .checks import CHECKS

ROOT = Path(__file__).parents[2]


@functools.cache
def _functions(path: Path) -> set[str]:
    """Names of the test functions of a module."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_all_of_them_are_listed():
    assert len(CHECKS) == 91


@pytest.mark.parametrize("name", CHECKS)
def test_where_a_check_is_covered(name):
    where = CHECKS[name]
    named = re.findall(r"\b(\w+)\.(test_\w+)\.(test_\w+)", where)
    assert named or (where.startswith("no: ") and len(where) > 20), where
    assert where.startswith("no: ") or len(named) == where.count(",") + 1, "a test's name is misspelled"
    for room, module, test in named:
        assert test in _functions(ROOT / "tests" / room / f"{module}.py"), (module, test)
