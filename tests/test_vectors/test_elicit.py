"""Diagnosing engines that can only be asked: servers with mistakes of their own in tokenizer, template and echo."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.sampling import top_logprobs
from ds4ref.targets import Ability, Delta, Prompt, Request, Step, Target, Token
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.diagnosis.prompts import MISTAKES, places
from ds4ref.test_vectors.elicit import elicit
from ds4ref.text.chat import encode_chat_prompt
from tests.marking import sampled

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}


class Served(Target):
    """The diagnostic model behind an interface of text and 20 alternatives, with a mistake in making its prompts."""

    kind, name, max_top_logprobs = "served", "test", 20

    def __init__(self, engine: Engine, mistake: str | None = None, echo: bool = False, shift: int = 0):
        self.engine, self.mistake, self.shift = engine, mistake, shift
        self.abilities = frozenset(
            {Ability.CHAT, Ability.TEXT, Ability.TOP_LOGPROBS} | ({Ability.SCORE} if echo else set())
        )

    def encode(self, prompt: Prompt) -> list[int]:
        tok = self.engine.tokenizer
        ids = (
            tok.encode(prompt.text)
            if prompt.text is not None
            else encode_chat_prompt(tok, "", prompt.user or "", "none")
        )
        return BY_NAME[self.mistake].make(tok, ids) if self.mistake else ids

    def step(self, row: np.ndarray, token: int) -> Step:
        raw = self.engine.tokenizer.token_bytes
        return Step(Token(raw(token)), tuple(Token(raw(i), lp) for i, _, lp in top_logprobs(row, 20)))

    def stream(self, request: Request) -> Iterator[Delta]:
        session = self.engine.session(600)
        session.sync(self.encode(request.prompt))
        steps = []
        for _ in range(request.max_tokens):
            token = session.argmax()
            steps.append(self.step(session.logits, token))
            session.eval(token)
        yield Delta("x", tuple(steps), 0.0, "length")

    def score_text(self, text: str, top: int = 0) -> list[Step]:
        ids = self.encode(Prompt.plain(text))
        rows = self.engine.session(len(ids) + 1).extend(ids)
        raw = self.engine.tokenizer.token_bytes
        first = Step(Token(raw(ids[0])), self.step(rows[0], 0).top if self.shift else ())
        return [first, *(self.step(rows[i - 1 + self.shift], ids[i]) for i in range(1, len(ids)))]


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


pytestmark = pytest.mark.usefixtures("without_families")


class Clean(Signatures):
    """Without the faults inside the model: this is about the ones outside."""

    def faults(self, mode):
        return []


def asked(engine: Engine, target: Served, chat: bool = False, prompt: str = "mixed"):
    seen = elicit(target, engine, None, prompt, chat)
    return diagnose(Clean(engine, seen.ids.tolist()), seen, engine.tokenizer.bos)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("echo", "chat"), sampled([(echo, chat) for echo in (False, True) for chat in (False, True)], 3)
)
def test_a_server_without_mistakes(engine, chat, echo) -> None:
    found = asked(engine, Served(engine, echo=echo), chat)
    assert found.verdict == "exact" and found.confidence > 0.8
    assert found.positions == (119 if echo and not chat else 32)


@pytest.mark.parametrize("mistake", sampled(["space_added", "no_merges"], ["no_merges"]))
@pytest.mark.parametrize("echo", sampled([False, True], [True]))
def test_a_tokenizer_with_a_mistake(engine, mistake, echo) -> None:
    found = asked(engine, Served(engine, mistake, echo))
    assert (found.verdict, found.fault) == ("fault", mistake) and found.confidence > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", ["markers_as_text", "think_open", "think_missing", "newline_added"])
def test_a_template_with_a_mistake(engine, mistake) -> None:
    found = asked(engine, Served(engine, mistake), chat=True, prompt="short")
    assert (found.verdict, found.fault) == ("fault", mistake) and found.confidence > 0.8


def test_digits(engine) -> None:
    tok = engine.tokenizer
    ids = tok.encode("In 1998 the 1200 sacks")
    wrong = BY_NAME["digits_apart"].make(tok, ids)
    assert tok.decode(wrong) == tok.decode(ids)
    assert all(len(tok.token_bytes(i)) == 1 for i in wrong if tok.token_bytes(i).isdigit())


def test_an_echo_that_is_early(engine) -> None:
    """As llama-cpp-python's server does it (docs/reference/vectors.md)."""
    assert asked(engine, Served(engine, echo=True, shift=1)).fault == "rows_early"


def test_places_are_those_with_the_same_text_behind(engine) -> None:
    tok = engine.tokenizer
    ids = [tok.bos, *tok.encode("The old mill"), tok.assistant, tok.think_close]
    at = places(tok, ids, [tok.bos, *tok.encode("x"), *ids[1:]])
    assert at[1:].tolist() == [t + 1 for t in range(1, len(ids))]
    assert places(tok, ids, ids).tolist() == list(range(len(ids)))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_mistakes_leave_other_prompts_alone(engine, name) -> None:
    """Every mistake makes ids of the vocabulary, whatever it is given, and finds nothing in an empty prompt."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        wrong = BY_NAME[name].make(engine.tokenizer, rng.integers(0, 512, 40).tolist())
        assert wrong and 0 <= min(wrong) and max(wrong) < 512
    assert BY_NAME[name].make(engine.tokenizer, []) in ([], engine.tokenizer.encode(" "))


def test_what_cannot_be_asked_is_one_line(engine) -> None:
    with pytest.raises(UsageError, match="takes only text, not --token-ids"):
        elicit(Served(engine), engine, [1, 2], "mixed")
    with pytest.raises(UsageError, match="cannot be sent as a chat"):
        elicit(Served(engine), engine, [1, 2], "mixed", chat=True)


@pytest.mark.thorough
def test_the_command_asks_a_local_engine(capsys) -> None:
    target = f"local:{diagnostic_path()}?numerics=exact"
    for more in ([], ["--chat", "--prompt", "short"]):
        assert cli.main(["diagnose", "--target", target, "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "exact"
