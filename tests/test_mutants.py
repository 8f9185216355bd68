"""The mutation tool makes every kind of mistake it promises, one at a time."""

from __future__ import annotations

from pathlib import Path

from .mutants.edits import Places
from .mutants.rooms import ROOMS, modules

ROOT = Path(__file__).resolve().parents[1]

SOURCE = '''\
def f(a: int, b: "list[int]") -> str:
    """Text with 1 < 2."""
    if a < 3 and not b:
        raise ValueError(f"{a + 1} é")
    x = "é", a + b.size
    b.sort(key=len)
    g(a, b)
    return sorted(x.copy()) if a else x[-1:]
{"é": a, "b": b, "c": 1}, b[: a + 1]
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
            "return sorted(x.copy()) if a else x[-2:]", "return sorted(x.copy()) if a else x[-0:]",
            "return sorted(x.copy()) if a else x[:-1]"},
        9: {'{"é": b, "b": a, "c": 1}, b[: a + 1]', '{"é": a, "b": b, "c": 2}, b[: a + 1]',
            '{"é": a, "b": b, "c": 0}, b[: a + 1]', '{"é": a, "b": b, "c": 1}, b[a + 1:]',
            '{"é": a, "b": b, "c": 1}, b[: a - 1]', '{"é": a, "b": b, "c": 1}, b[: a + 2]',
            '{"é": a, "b": b, "c": 1}, b[: a + 0]'},
    }  # fmt: skip


def test_every_module_of_the_product_belongs_to_a_room_that_has_tests():
    """What the wheel holds, found without the table: a new folder must be entered, and one that moved is missed."""
    found = modules(ROOT)
    listed = [path.relative_to(ROOT).as_posix() for paths in found.values() for path in paths]
    tops = [
        path for path in ROOT.iterdir() if (path / "__init__.py").is_file() and path.name not in ("tests", "benchmarks")
    ]
    every = [path.relative_to(ROOT) for top in tops for path in top.rglob("*.py")]
    wanted = [path.as_posix() for path in every if not ROOT.joinpath(*path.parts[:2]).is_symlink()]
    assert sorted(listed) == sorted(wanted) and len(listed) > 500
    assert all(found.values()), "a room without a module"
    for path, tests in ROOMS.values():
        assert (ROOT / path).exists() and all((ROOT / test).exists() for test in tests.split())
