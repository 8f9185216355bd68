"""Control tokens that a model generates are no text in any API, wherever in an answer they come."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from ds4ref.server.turn import Sampling, Turn
from ds4ref.targets.answer import Delta, Usage
from ds4ref.text.chat import Message
from ds4ref.text.protocol import ASSISTANT, BOS, USER

from .scripted import ScriptedEngine, ScriptedWorker


@pytest.fixture
def worker(nano_engine) -> Iterator[ScriptedWorker]:
    worker = ScriptedWorker(ScriptedEngine(nano_engine.tokenizer), ctx=1024)
    yield worker
    worker.shut_down()


def answered(worker: ScriptedWorker, script: list[int], turn: Turn) -> list[Delta]:
    """The deltas of an answer."""
    events: queue.SimpleQueue = queue.SimpleQueue()
    worker.engine.say(script)
    worker.submit(turn, events.put)
    deltas: list[Delta] = []
    while not (deltas and deltas[-1].finish):
        event = events.get(timeout=60)
        deltas += [event] if isinstance(event, Delta) else []
    return deltas


ASKED = (Message("user", "hi"),)


@pytest.mark.parametrize("turn", [
    Turn("chat", messages=ASKED, thinking="none"), Turn("messages", messages=ASKED),
    Turn("completions", text="hi", thinking="none"),
    Turn("chat", messages=ASKED, thinking="none", stop=("<", USER)),
])  # fmt: skip
@pytest.mark.parametrize("name", [BOS, USER, ASSISTANT])
def test_a_control_token_has_no_text(worker, turn: Turn, name: str) -> None:
    tokenizer = worker.engine.tokenizer
    control = next(i for i in range(len(tokenizer)) if tokenizer.token_string(i) == name)
    half, rest = tokenizer.encode("a") + tokenizer.encode("\u00e9"), tokenizer.encode("b")
    script = [control, *half, control, control, *rest, control]
    deltas = answered(worker, script, Turn(**{**turn.__dict__, "sampling": Sampling(0.0)}))
    assert "".join(delta.text + delta.reasoning for delta in deltas) == "a\u00e9b"
    assert isinstance(deltas[-1].usage, Usage) and deltas[-1].usage.completion == len(script)


def test_what_only_looks_like_one_is_text_and_bytes_before_one_are_not_lost(worker) -> None:
    tokenizer = worker.engine.tokenizer
    spelled, byte = tokenizer.encode(USER), next(i for i in range(300) if tokenizer.token_bytes(i) == b"\xc3")
    turn = Turn("chat", messages=ASKED, thinking="none", sampling=Sampling(0.0))
    deltas = answered(worker, [*spelled, byte, tokenizer.user, *tokenizer.encode("c")], turn)
    assert "".join(delta.text for delta in deltas) == USER + "\ufffdc"
