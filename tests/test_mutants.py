"""The mutation tool makes every kind of mistake it promises, one at a time."""

from __future__ import annotations

import ast
from pathlib import Path

from .mutants.edits import Places, drawn

SOURCE = '''\
def f(a: int, b: "list[int]") -> str:
    """Text with 1 < 2."""
    if a < 3 and not b:
        raise ValueError(f"{a + 1} é")
    x = "é", a + b.size
    b.sort(key=len)
    g(a, b)
    return sorted(x.copy()) if a else x[-1:]
'''


def test_every_kind_of_edit():
    places = Places(SOURCE.encode())
    found = {
        line: {places.edited(edit).decode().splitlines()[line - 1].strip() for edit in edits}
        for line, edits in places.by_line().items()
    }
    assert found == {
        3: {"if a <= 3 and not b:", "if a < 4 and not b:", "if a < 2 and not b:", "if a < 3 or not b:",
            "if a < 3 and b:"},
        4: {"pass"},
        5: {'x = "é", a - b.size'},
        6: {"pass", "b.sort(**{})"},
        7: {"pass", "g(b, a)"},
        8: {"return list(x.copy()) if a else x[-1:]", "return sorted(x) if a else x[-1:]",
            "return x[-1:] if a else sorted(x.copy())", "return sorted(x.copy()) if a else x[1:]",
            "return sorted(x.copy()) if a else x[-2:]", "return sorted(x.copy()) if a else x[-0:]"},
    }  # fmt: skip


def test_what_is_drawn_parses_and_differs_from_one_line_on():
    path = Path(__file__).with_name("mutants") / "edits.py"
    before = path.read_text()
    found = list(drawn([path], 25, seed=1))
    assert len({line for _, line, _ in found}) == 25 and found == list(drawn([path], 25, seed=1))
    for _, line, text in found:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))
        assert text.decode().splitlines()[: line - 1] == before.splitlines()[: line - 1]
