"""Several answers at once: in turns, each as if alone."""

from __future__ import annotations

import threading
import time

import pytest

from ds4ref.engine import Engine
from ds4ref.errors import BackendError
from ds4ref.nano import random_path
from ds4ref.server import worker as module
from ds4ref.server.queue import Busy
from ds4ref.server.turn import Failed, Sampling, Turn
from ds4ref.server.worker import Worker
from ds4ref.targets.answer import Delta, Finish
from ds4ref.text.chat import Message

from .scripted import Asked, ScriptedEngine, ScriptedWorker

CTX = 4096


@pytest.fixture(scope="module")
def random_engine():
    with Engine.open(random_path(), threads=1) as engine:
        yield engine


def turn(text, n=20, client="x", seed=None, system="You are brief.", **more):
    drawn = Sampling(0.0) if seed is None else Sampling(1.0, seed=seed)
    messages = (Message("system", system), Message("user", text))
    return Turn("chat", messages=messages, thinking="none", sampling=drawn, max_tokens=n, client=client, **more)


def alone(engine, asked):
    """The tokens of the same turn on a worker of its own."""
    worker = Worker(engine, ctx=CTX)
    found = Asked(worker, asked).wait()
    worker.shut_down()
    return found.tokens


@pytest.fixture
def worker(random_engine):
    worker = Worker(random_engine, ctx=CTX)
    yield worker
    worker.shut_down(0)


def passes(worker, monkeypatch):
    """Note the sizes of the groups that share a pass."""
    sizes, look_ahead = [], worker._together.look_ahead

    def noted(asked):
        sizes.append(len(asked))
        look_ahead(asked)

    monkeypatch.setattr(worker._together, "look_ahead", noted)
    return sizes


def test_answers_are_decoded_in_one_pass(random_engine, worker, monkeypatch):
    """Three in most passes; ten in two groups at most, since a pass has eight rows."""
    sizes = passes(worker, monkeypatch)
    found = [Asked(worker, turn(f"Answer {n}", n=60, client=f"c{n}")) for n in range(3)]
    wanted = [one.wait().tokens for one in found]
    assert max(sizes) == 3 and sizes.count(3) > 40
    assert [alone(random_engine, turn(f"Answer {n}", n=60)) for n in range(3)] == wanted
    del sizes[:]
    many = [Asked(worker, turn(f"Answer {n % 3}", n=60, client=f"c{n}")) for n in range(10)]
    assert [one.wait().tokens for one in many] == [wanted[n % 3] for n in range(10)]
    assert max(sizes) == 8


def test_a_pass_that_fails_is_made_up_for(random_engine, worker, monkeypatch):
    """Each answer then computes by itself."""

    def broken(asked):
        raise RuntimeError("broken")

    monkeypatch.setattr(worker._together, "look_ahead", broken)
    found = [Asked(worker, turn(f"Answer {n}", n=20, client=f"c{n}")) for n in range(3)]
    tokens = [one.wait().tokens for one in found]
    assert tokens == [alone(random_engine, turn(f"Answer {n}", n=20)) for n in range(3)]


@pytest.mark.thorough
def test_a_beginning_that_is_being_evaluated_is_waited_for(worker):
    """Agents start several requests with one system prompt: it is evaluated once."""
    system = "Here are the rules of the house, all of which hold. " * 80
    found = [Asked(worker, turn(f"Question {n}", n=4, system=system, client=f"c{n}")) for n in range(4)]
    for one in found:
        one.wait()
    first, *others = found
    assert first.job.start.cached == 0 and len(first.job.ids) > 600
    assert all(one.job.start.cached > 500 for one in others)
    assert all(isinstance(one.told[-1][1], Delta) and one.told[-1][1].finish for one in found)


def slow(nano_engine, **more):
    """A worker whose slices are over after every step, so that who comes next shows."""
    return ScriptedWorker(ScriptedEngine(nano_engine.tokenizer, 16), ctx=CTX, **more)


def test_nobody_says_a_second_token_while_others_wait_for_their_first(nano_engine, monkeypatch):
    monkeypatch.setattr(module, "SLICE", 1000.0)
    worker, told = slow(nano_engine), []
    worker.engine.say(*["one two three four five six seven"] * 4)
    worker.engine.hold()
    for n in range(4):
        worker.submit(turn(f"word {n} " * 20), lambda event, n=n: told.append((n, event)))
    worker.engine.held()
    worker.engine.release()
    while sum(isinstance(event, Delta) and bool(event.finish) for _, event in told) < 4:
        time.sleep(0.005)
    said = [n for n, event in told if isinstance(event, Delta) and event.steps]
    assert sorted(said[:4]) == [0, 1, 2, 3] and said[4:8].count(said[4]) == 4, "then a whole slice each"
    worker.shut_down()


def test_without_memory_for_another_conversation_the_next_one_waits(nano_engine, monkeypatch):
    engine = ScriptedEngine(nano_engine.tokenizer, 16)
    worker, made = ScriptedWorker(engine, ctx=CTX), []
    real = engine.session

    def session(ctx):
        made.append(ctx)
        if len(made) > memory:
            raise BackendError("no memory for a context")
        return real(ctx)

    memory = 1

    engine.session = session  # the first one was made already: two at once, no more
    engine.hold()
    found = [Asked(worker, turn(f"word {n} " * 20)) for n in range(4)]
    while worker.streams > 2:
        engine.step()
    assert len(worker.running) == 2
    engine.release()
    for one in found:
        assert one.wait().told[-1][1].finish == Finish.STOP
    memory = 9  # when all have ended it is tried again
    engine.hold()
    found = [Asked(worker, turn(f"word {n} " * 20)) for n in range(3)]
    engine.held()
    while len(worker.running) < 3:
        engine.step()
    engine.release()
    for one in found:
        assert one.wait().told[-1][1].finish == Finish.STOP
    worker.shut_down()


def test_all_that_run_end_at_shutdown(nano_engine):
    worker = slow(nano_engine)
    worker.engine.hold()
    found = [Asked(worker, turn(f"word {n} " * 20)) for n in range(3)]
    worker.engine.step(3)
    closing = threading.Thread(target=worker.shut_down, args=(0.05,))
    closing.start()
    ends = [one.wait().told[-1][1] for one in found]
    worker.engine.release()
    closing.join(60)
    assert not closing.is_alive() and not worker.alive
    assert all(isinstance(end, Failed) or end.finish == Finish.CANCELLED for end in ends)
    with pytest.raises(Busy):
        worker.submit(turn("late"), lambda event: None)
