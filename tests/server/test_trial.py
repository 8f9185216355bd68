"""Grammars are tried in a process of their own: only that one ends with an abort of llguidance; judgments agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4ref.errors import TextError
from ds4ref.server import vocabulary as words
from ds4ref.server.constrain import guide_of
from ds4ref.server.grammar import check
from ds4ref.text import limited

from .constrained import STRICT, TOK, function, json_turn, tool_turn

ABORTS = """import json, os, sys
for line in sys.stdin:
    if json.loads(line)["do"] == "grammar":
        os.abort()
    print("{}", flush=True)
"""
ENUM = function(strict=True, type="object", properties={"x": {"enum": ["a"]}}, additionalProperties=False)
TURNS = (json_turn({"type": "integer"}), tool_turn(function(**STRICT)), tool_turn(ENUM))


def test_a_grammar_that_aborts_the_library_ends_a_process_of_its_own(tmp_path: Path, monkeypatch) -> None:
    """Not this one: the request is refused in a line, and the next one starts another process."""
    script = tmp_path / "worker.py"
    script.write_text(ABORTS)
    with monkeypatch.context() as patch:
        patch.setattr(limited, "_WORKER", script)
        words._trial.close()
        for tried in (*(lambda turn=turn: guide_of(turn, TOK) for turn in TURNS), lambda: check("x", "{}")):
            with pytest.raises(TextError, match=r"^the grammar of the answer failed: its process crashed \(SIGABRT\)$"):
                tried()
    assert all(guide_of(turn, TOK) is not None for turn in TURNS)
