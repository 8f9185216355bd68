"""The table of the reference's checks is whole, and every test that it names is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from .checks import CHECKS

ROOT = Path(__file__).parents[2]


@functools.cache
def _functions(path: Path) -> set[str]:
    """Names of the test functions of a module."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_all_of_them_are_listed_and_covered_where_they_say():
    assert len(CHECKS) == 91
    for name, where in CHECKS.items():
        named = re.findall(r"\b(\w+)\.(test_\w+)\.(test_\w+)", where)
        assert named or (where.startswith("no: ") and len(where) > 20), name
        assert where.startswith("no: ") or len(named) == where.count(",") + 1, f"{name}: a test is misspelled"
        for room, module, test in named:
            assert test in _functions(ROOT / "tests" / room / f"{module}.py"), (name, module, test)
