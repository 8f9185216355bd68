"""The Python API: the examples of docs/reference/api.md run as they stand, and say what the command says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ds4ref
from ds4ref.cli.ds4 import main
from ds4ref.errors import UsageError
from ds4ref.targets import Prompt
from ds4ref.targets.local import LocalTarget

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def examples() -> list[tuple[int, str]]:
    """The page's Python blocks, each with its line number."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


def test_the_examples_of_the_page(trained_path, tmp_path, monkeypatch):
    """In order and in one namespace; a failure shows the page's own line."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    blocks = examples()
    assert len(blocks) == PAGE.read_text(encoding="utf-8").count("```python")
    for line, code in blocks:
        assert "assert" in code, f"the example at line {line + 1} shows nothing"
        exec(compile("\n" * line + code, PAGE, "exec"), space)


@pytest.fixture(scope="module")
def model(nano_path):
    with ds4ref.open(nano_path, threads=1) as engine:
        yield engine


@pytest.mark.parametrize("think", ["none", "high"])
def test_an_answer_is_that_of_the_command(model, nano_path, capsys, think):
    flags = ["-m", nano_path, "-p", "Why?", "--temp", "0", "-n", "16", "-t", "1", "-c", "256"]
    assert main([*flags, "--nothink" if think == "none" else "--think"]) == 0
    said = capsys.readouterr().out
    pieces = list(model.stream("Why?", max_tokens=16, thinking=think))
    opening = "<think>\n" if think == "high" else ""  # a pipe has no colours to tell thinking by
    assert len(pieces) >= 16 and said.rstrip("\n") == opening + "".join(piece.text for piece in pieces).rstrip("\n")


def test_thinking_is_no_part_of_the_answer(model):
    """The answer begins where a think tag closes, wherever the model closes it."""
    tok = model.tokenizer
    inside = [*model.prompt("Why?", thinking="high"), *tok.encode("Hm.")]
    assert all(piece.thinking for piece in model.stream(inside, max_tokens=3))
    assert model.ask(inside, max_tokens=3) == ""
    assert model.ask([*inside, tok.think_close], max_tokens=3) != ""


def test_all_doors_make_the_same_prompt(model):
    ids = model.prompt("Why <think>?", "Be brief.", "high")
    assert ids == LocalTarget(model).encode(Prompt.chat("Why <think>?", "Be brief.", "high"))
    assert ids.count(model.tokenizer.think_open) == 1, "the one that opens the answer"


def test_logits_of_text_are_those_of_its_ids(model):
    ids = model.tokenizer.encode("The mill ground no corn today")
    np.testing.assert_array_equal(model.logits("The mill ground no corn today"), model.logits(ids))
    session = model.session(64)
    session.sync(ids)  # whose output head meets one token instead of all
    np.testing.assert_allclose(model.logits(ids)[-1], session.logits, atol=1e-4)


def test_nothing_is_decoded_beyond_the_limit(model):
    assert model.ask("Why?", max_tokens=0) == ""
    run = model.stream("Why?", max_tokens=5)
    assert run.tokens == [] and run.session.pos == run.timing.prefill_tokens, "the prompt alone"
    assert sum(piece.token is not None for piece in run) == len(run.tokens) == 5


def test_wrong_options_are_refused(model):
    with pytest.raises(UsageError, match="none, high, max"):
        model.ask("Why?", thinking="hard")
    with pytest.raises(TypeError, match="top_q"):
        model.ask("Why?", top_q=0.5)


def test_what_the_package_offers():
    from ds4ref.engine import Engine
    from ds4ref.errors import Ds4Error
    from ds4ref.session.session import Session

    assert (ds4ref.Engine, ds4ref.Session, ds4ref.Ds4Error) == (Engine, Session, Ds4Error)
    assert ds4ref.open.__func__ is Engine.open.__func__
    assert set(ds4ref.__all__) <= set(dir(ds4ref))
    with pytest.raises(AttributeError, match="shut"):
        _ = ds4ref.shut
