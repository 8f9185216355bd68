"""One rule for all commands: a flag that two of them spell is declared once, and means and takes the same."""

from __future__ import annotations

import ast
import collections
import importlib
import re
from pathlib import Path

import pytest

from ds4ref.cli import options
from ds4ref.cli.flags import FLAGS

ROOT = Path(__file__).parents[2]
TOOLS = {"ds4": "ds4ref.cli.ds4", "ds4-bench": "speed_bench.cli", "ds4-vectors": "test_vectors.cli",
         "ds4-report": "reports.cli", "ds4-eval": "eval.cli", "ds4-server": "ds4ref.cli.server",
         "ds4-kv": "ds4ref.cli.kv", "ds4-quantize": "ds4ref.cli.quantize"}  # fmt: skip


def _commands(capsys, tool: str) -> list[list[str]]:
    """Every command of a tool, as its own usage lists them."""
    main = importlib.import_module(TOOLS[tool]).main
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    listed = re.findall(r"^  ([a-z]+)   ", text, re.MULTILINE) + re.findall(
        rf"^\s+{tool} ([a-z]+) ", text, re.MULTILINE
    )
    found = [[], *([name] for name in dict.fromkeys(listed))]
    return found + ([["trace", "record"], ["trace", "blame"]] if tool == "ds4-vectors" else [])


@pytest.fixture
def parsers(monkeypatch, capsys) -> dict[str, options.Parser]:
    """The parser behind the help of every command."""
    made: list[options.Parser] = []
    monkeypatch.setattr(options.Parser, "parse", _remembered(made, options.Parser.parse))
    found = {}
    for tool in TOOLS:
        for command in _commands(capsys, tool):
            made.clear()
            importlib.import_module(TOOLS[tool]).main([*command, "--help"])
            assert "usage:" in capsys.readouterr().out
            if made:
                found[" ".join([tool, *command])] = made[-1]
    assert len(found) > 20
    return found


def _remembered(made, parse):
    def remembering(self, argv):
        made.append(self)
        return parse(self, argv)

    return remembering


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


def test_whatever_computes_can_be_held_to_some_memory_of_a_gpu(parsers) -> None:
    of = {name: {flag for action in made._actions for flag in action.option_strings} for name, made in parsers.items()}
    computing = {name for name, flags in of.items() if "--backend" in flags}
    assert len(computing) > 8
    assert computing == {name for name, flags in of.items() if "--gpu-memory" in flags}
