"""The worker by its events, over a scripted engine: what a turn that was broken off, or failed, leaves behind."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest

from ds4ref.errors import BackendError
from ds4ref.server.turn import Failed, Prefill, Queued, Sampling, Turn
from ds4ref.server.worker import Stream
from ds4ref.targets.answer import Delta, Finish, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import Schema

from .scripted import ScriptedEngine, ScriptedWorker

BLOCK = "".join(part.text for part in render_calls([ToolCall("bash", '{"a":1}')]))
BASH = Schema('{"name":"bash","parameters":{"type":"object"}}', "bash")


@pytest.fixture
def worker(nano_engine):
    worker = ScriptedWorker(ScriptedEngine(nano_engine.tokenizer, 16), ctx=1024)
    yield worker
    worker.engine.release()
    worker.shut_down()


def asked(text, *more, **options):
    return Turn("chat", messages=(Message("user", text), *more), thinking="none", sampling=Sampling(0.0), **options)


def events_of(worker, turn, meanwhile=lambda job: None, **options):
    """The job, and all its events."""
    box: queue.SimpleQueue = queue.SimpleQueue()
    job = worker.submit(turn, box.put, **options)
    meanwhile(job)
    events = [box.get(timeout=60)]
    while not (isinstance(events[-1], Failed) or (isinstance(events[-1], Delta) and events[-1].finish)):
        events.append(box.get(timeout=60))
    return job, events


def test_a_prefill_that_is_broken_off_says_what_was_cached_and_keeps_what_it_did(worker):
    """Not that tokens were generated; and the same prompt again goes on where it ended."""
    text = "word " * 40

    def leave(job):
        worker.engine.held()
        worker.engine.step(2)
        job.cancel.press()
        worker.engine.release()

    worker.engine.hold()
    job, events = events_of(worker, asked(text), leave)
    total = len(job.ids)
    assert events == [
        Queued(0), Prefill(0, total, 0, "none"), Prefill(16, total, 0, "none"), Prefill(32, total, 0, "none"),
        Delta(finish=Finish.CANCELLED, usage=Usage(total, 0, 0, 0)),
    ]  # fmt: skip
    assert (job.finish, job.decoding) == ("cancelled", None) and job.began <= job.ended
    again, events = events_of(worker, asked(text))
    assert events[1:3] == [Prefill(32, total, 32, "memory-token"), Prefill(48, total, 32, "memory-token")]
    assert events[-1].usage == Usage(total, again.timing.tokens, 32, 0) and again.timing.reused_tokens == 32


@pytest.mark.parametrize(
    ("error", "said"),
    [(BackendError("it burns"), "it burns"), (ZeroDivisionError(), "internal error"),
     (BaseException("a panic in Rust"), "internal error")],
)  # fmt: skip
def test_after_a_bug_the_next_turn_has_a_session_of_its_own(worker, error, said):
    """What a bug leaves in the caches nobody knows; an error that the engine tells of leaves it as it says."""
    session = worker._idle[-1]
    worker.engine.fail = error
    job, events = events_of(worker, asked("hello"))
    assert events[-1] == Failed("engine", said) and job.finish == "error"
    assert (worker._idle == [session]) == isinstance(error, BackendError)
    assert events_of(worker, asked("hello"))[1][-1].finish == Finish.STOP


def test_a_failure_of_the_thread_itself_ends_the_answers_under_way_and_no_more(worker, monkeypatch):
    """Outside of a single answer's steps, too."""

    def fails_once(stream):
        monkeypatch.undo()
        raise BaseException("a panic in Rust")

    monkeypatch.setattr(worker, "_group", fails_once)
    assert events_of(worker, asked("hello"))[1][-1] == Failed("engine", "internal error")
    assert events_of(worker, asked("hello"))[1][-1].finish == Finish.STOP and worker.alive


def test_a_panic_in_the_steps_of_an_answer_ends_that_one_alone(worker):
    def steps():
        yield False
        raise BaseException("a panic in Rust")

    events = []
    stream = Stream(SimpleNamespace(listen=events.append), None, steps())
    assert worker._slice(stream, 0.0) and not worker._slice(stream, 0.0)
    assert events == [Failed("engine", "internal error")]
