"""One rule for all commands: a flag that two of them spell is declared once, and means and takes the same."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

import pytest

from ds4ref.console import options
from ds4ref.console.flags import FLAGS

from . import flags_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parsers() -> dict[str, options.Parser]:
    """The parser behind the help of every command."""
    commands = dict(flags_page.parsers())
    assert {"ds4-vectors diagnose", "ds4-vectors trace blame", "ds4 nano"} <= set(commands)
    return commands


def test_the_page_of_flags_is_that_of_the_parsers() -> None:
    assert (ROOT / "docs" / "reference" / "flags.md").read_text(encoding="utf-8") == flags_page.page()


def test_flags_of_two_commands_are_declared_once() -> None:
    places = collections.defaultdict(list)
    for room in ("ds4ref/cli", "eval", "reports", "speed_bench", "test_vectors"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    for arg in node.args:
                        if isinstance(arg, ast.Constant) and str(arg.value).startswith("-"):
                            places[arg.value].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    known = {name for long, (short, _) in FLAGS.items() for name in (long, *short)}
    assert not {name: where for name, where in places.items() if len(where) > 1 or name in known}


def test_and_take_the_same(parsers) -> None:
    for command, parser in parsers.items():
        for action in parser._actions:
            for long in set(action.option_strings) & set(FLAGS):
                short, what = FLAGS[long]
                assert set(short) <= set(action.option_strings), f"{command}: {long} without {short}"
                takes = "action" not in what or what["action"] in ("append",)
                assert (action.nargs != 0) == takes, f"{command}: {long}"
                assert action.help, f"{command}: {long}"
