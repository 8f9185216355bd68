"""Diagnosis through requests only: servers with bugs in their tokenizer, chat template or echo."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.targets import Ability, open_target
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.diagnosis.prompts import MISTAKES, places
from ds4ref.test_vectors.elicit import elicit
from tests.marking import sampled

from .endpoint import Endpoint
from .scripted import Scripted

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}


pytestmark = pytest.mark.usefixtures("without_families")


class Clean(Signatures):
    """Signatures without the faults in the forward pass, as these tests are about mistakes outside it."""

    def faults(self, mode):
        return []


def asked(engine: Engine, wrong: str = "", echo: bool = False, chat: bool = False, prompt: str = "mixed"):
    with Endpoint(engine, wrong, echo=echo) as server, open_target(server.url) as target:
        if not echo:
            target.abilities -= {Ability.SCORE}
        seen = elicit(target, engine, None, prompt, chat)
    return diagnose(Clean(engine, seen.ids.tolist()), seen, engine.tokenizer.bos)


@pytest.mark.parametrize(
    ("wrong", "echo", "chat", "prompt"),
    sampled(
        [
            ("", True, False, "mixed"), ("", False, False, "mixed"), ("", False, True, "mixed"),
            ("space_added", True, False, "mixed"), ("no_merges", True, False, "mixed"),
            ("no_merges", False, False, "mixed"), ("early", True, False, "mixed"),
            *((mistake, False, True, "short")
              for mistake in ("markers_as_text", "think_open", "think_missing", "newline_added")),
        ],
        4,
    ),
)  # fmt: skip
def test_servers_with_mistakes_of_their_own(engine, wrong, echo, chat, prompt) -> None:
    """Bugs in tokenizer, template and echo are named, from text and 20 alternatives alone."""
    result = asked(engine, wrong, echo, chat, prompt)
    names = {"": ("exact", None), "early": ("fault", "rows_early")}
    assert (result.verdict, result.fault) == names.get(wrong, ("fault", wrong)) and result.confidence > 0.8
    assert result.positions >= (100 if echo and wrong != "space_added" else 20)  # whose echo is not the text


def test_places_are_those_with_the_same_text_behind(engine) -> None:
    tok = engine.tokenizer
    ids = [tok.bos, *tok.encode("The old mill"), tok.assistant, tok.think_close]
    at = places(tok, ids, [tok.bos, *tok.encode("x"), *ids[1:]])
    assert at[1:].tolist() == [t + 1 for t in range(1, len(ids))]
    assert places(tok, ids, ids).tolist() == list(range(len(ids)))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_mistakes_leave_other_prompts_alone(engine, name) -> None:
    """Every mistake returns ids of the vocabulary for any prompt, and has no effect on an empty one."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        wrong = BY_NAME[name].make(engine.tokenizer, rng.integers(0, 512, 40).tolist())
        assert wrong and 0 <= min(wrong) and max(wrong) < 512
    assert BY_NAME[name].make(engine.tokenizer, []) in ([], engine.tokenizer.encode(" "))


def test_what_cannot_be_asked_is_one_line(engine) -> None:
    target = Scripted([])
    target.abilities |= {Ability.TEXT}
    with pytest.raises(UsageError, match="takes only text, not --token-ids"):
        elicit(target, engine, [1, 2], "mixed")
    with pytest.raises(UsageError, match="cannot be sent as a chat"):
        elicit(target, engine, [1, 2], "mixed", chat=True)


@pytest.mark.thorough
def test_the_command_asks_a_local_engine(capsys) -> None:
    target = f"local:{diagnostic_path()}?numerics=exact"
    for more in ([], ["--chat", "--prompt", "short"]):
        assert cli.main(["diagnose", "--target", target, "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "exact"
