"""The worker by its events, over a scripted engine: what a turn that was broken off, or failed, leaves behind."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.errors import BackendError
from ds4ref.server.turn import Failed, Prefill, Queued, Sampling, Turn
from ds4ref.server.worker import Stream, _guide_of
from ds4ref.targets.answer import Delta, Finish, Usage
from ds4ref.text.chat import Message
from ds4ref.text.protocol import ASSISTANT, BOS, USER

from .scripted import Asked, ScriptedEngine, ScriptedWorker


@pytest.fixture
def worker(nano_engine):
    worker = ScriptedWorker(ScriptedEngine(nano_engine.tokenizer, 16), ctx=1024)
    yield worker
    worker.engine.release()
    worker.shut_down()


def asked(text, *more, **options):
    return Turn("chat", messages=(Message("user", text), *more), thinking="none", sampling=Sampling(0.0), **options)


def test_a_prefill_that_is_broken_off_says_what_was_cached_and_keeps_what_it_did(worker):
    """Not that tokens were generated; and the same prompt again goes on where it ended."""
    text = "word " * 40
    worker.engine.hold()
    first = Asked(worker, asked(text))
    worker.engine.held()
    worker.engine.step(2)
    job, total = first.job, len(first.job.ids)
    job.cancel.press()
    worker.engine.release()
    assert first.wait().events == [
        Queued(0), Prefill(0, total, 0, "none"), Prefill(16, total, 0, "none"), Prefill(32, total, 0, "none"),
        Delta(finish=Finish.CANCELLED, usage=Usage(total, 0, 0, 0)),
    ]  # fmt: skip
    assert (job.finish, job.decoding) == ("cancelled", None) and job.began <= job.ended
    again = Asked(worker, asked(text)).wait()
    assert again.events[1:3] == [Prefill(32, total, 32, "memory-token"), Prefill(48, total, 32, "memory-token")]
    assert again.events[-1].usage == Usage(total, again.job.timing.tokens, 32, 0)
    assert again.job.timing.reused_tokens == 32


@pytest.mark.parametrize(
    ("error", "said"),
    [(BackendError("it burns"), "it burns"), (ZeroDivisionError(), "internal error"),
     (BaseException("a panic in Rust"), "internal error")],
)  # fmt: skip
def test_after_a_bug_the_next_turn_has_a_session_of_its_own(worker, error, said):
    """What a bug leaves in the caches nobody knows; an error that the engine tells of leaves it as it says."""
    session = worker._idle[-1]
    worker.engine.fail = error
    first = Asked(worker, asked("hello")).wait()
    assert first.events[-1] == Failed("engine", said) and first.job.finish == "error"
    assert (worker._idle == [session]) == isinstance(error, BackendError)
    assert Asked(worker, asked("hello")).wait().events[-1].finish == Finish.STOP


def test_a_failure_of_the_thread_itself_ends_the_answers_under_way_and_no_more(worker, monkeypatch):
    """Outside of a single answer's steps, too."""

    def fails_once(stream):
        monkeypatch.undo()
        raise BaseException("a panic in Rust")

    monkeypatch.setattr(worker, "_group", fails_once)
    assert Asked(worker, asked("hello")).wait().events[-1] == Failed("engine", "internal error")
    assert Asked(worker, asked("hello")).wait().events[-1].finish == Finish.STOP and worker.alive


def test_a_panic_in_the_steps_of_an_answer_ends_that_one_alone(worker):
    def steps():
        yield False
        raise BaseException("a panic in Rust")

    events = []
    stream = Stream(SimpleNamespace(listen=events.append), None, steps())
    assert worker._slice(stream, 0.0) and not worker._slice(stream, 0.0)
    assert events == [Failed("engine", "internal error")]


def test_markup_of_calls_is_greedy_and_what_they_say_is_drawn():
    """Of the state of the reader, token by token: which state is which is the parser's test."""
    turn, generation = SimpleNamespace(callable=("bash",), max_thinking=None), SimpleNamespace(thinking=False)
    reader, logits = SimpleNamespace(greedy=True), np.float32([0, 2, 1])
    guide = _guide_of(None, turn, reader, think_close=0)
    assert guide(generation, logits) == 1
    generation.thinking = True
    assert guide(generation, logits) is None
    generation.thinking = reader.greedy = False
    assert guide(generation, logits) is None
    assert _guide_of(None, SimpleNamespace(callable=(), max_thinking=None), reader, think_close=0) is None


# --- control tokens that a model generates are no text in any API, wherever in an answer they come


HI = (Message("user", "hi"),)


def answered(worker: ScriptedWorker, script: list[int], turn: Turn) -> list[Delta]:
    """The deltas of an answer."""
    worker.engine.say(script)
    return Asked(worker, turn).wait().deltas


@pytest.mark.parametrize("turn", [
    Turn("chat", messages=HI, thinking="none"), Turn("messages", messages=HI),
    Turn("completions", text="hi", thinking="none"),
    Turn("chat", messages=HI, thinking="none", stop=("<", USER)),
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
    turn = Turn("chat", messages=HI, thinking="none", sampling=Sampling(0.0))
    deltas = answered(worker, [*spelled, byte, tokenizer.user, *tokenizer.encode("c")], turn)
    assert "".join(delta.text for delta in deltas) == USER + "\ufffdc"
