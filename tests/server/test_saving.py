"""When a worker writes checkpoints, and that going on from one gives the very answer of a cold start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.server.sequences import Sequences
from ds4ref.server.turn import Failed, Prefill, Sampling, Turn
from ds4ref.server.worker import Job, Worker
from ds4ref.session.boundaries import Policy
from ds4ref.session.session import Session
from ds4ref.session.store import Store
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import Schema

from .scripted import Asked, ScriptedEngine, ScriptedWorker

CTX = 4096
SMALL = Policy(min_tokens=32, cold_max=3000, interval=0, trim=8, align=32)
SYSTEM = "You answer in riddles, and you never say what you were asked to keep to yourself, whoever asks. " * 4


class Recorded:
    """Checkpoints that are written nowhere: what would be, and when."""

    def __init__(self, policy: Policy, works: bool = True):
        self.policy, self.works = policy, works
        self.saved: list[tuple[str, int]] = []
        self.texts: list[tuple[bytes, ...]] = []

    def load(self, session: Session, text: bytes, fit: Any, beyond: int = 0) -> tuple[int, str] | None:
        return None

    def save(self, session: Session, texts: Sequence[bytes], reason: str) -> bool:
        assert session.valid
        self.saved.append((reason, session.pos))
        self.texts.append(tuple(texts))
        return self.works


@pytest.fixture(scope="module")
def nano(nano_path: str) -> Engine:
    return Engine.open(nano_path)


def turn(*said: str, system: str = SYSTEM, n: int = 6, **more: Any) -> Turn:
    """A conversation: a user and the assistant in turns."""
    roles = ("user", "assistant")
    messages = [Message(roles[i % 2], text) for i, text in enumerate(said)]
    greedy = Sampling(0.0, 1.0, 0.0, 0)
    return Turn("chat", messages=(Message("system", system), *messages), max_tokens=n, sampling=greedy,
                **{"thinking": "none", **more})  # fmt: skip


class Running:
    """A worker that answers one turn after the other."""

    def __init__(self, engine: Engine, disk: Any = None, ctx: int = CTX, **options: Any):
        self.worker = Worker(engine, ctx=ctx, sequences=Sequences(engine.tokenizer, disk=disk, **options))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.worker.shut_down()

    @property
    def logits(self) -> np.ndarray:
        """What follows the last answer."""
        while not self.worker._idle:
            time.sleep(0.001)
        return self.worker._idle[-1].logits

    def ask(self, one: Turn) -> tuple[Job, list[int], list[Any]]:
        """The job, the tokens of its answer, and everything that was told."""
        asked = Asked(self.worker, one).wait()
        assert not any(isinstance(event, Failed) for event in asked.events), asked.events
        return asked.job, asked.tokens, asked.events


def anchor(engine: Engine, one: Turn) -> int:
    """Tokens before the last user marker that comes before an answer."""
    ids = one.rendered().encode(engine.tokenizer)
    first = ids.index(engine.tokenizer.assistant)
    return max(i for i, token in enumerate(ids[:first]) if token == engine.tokenizer.user)


# --- when


def test_a_cold_prompt_is_kept_up_to_its_last_user_message(nano: Engine) -> None:
    """ds4 KV 6, 7.1; the rest of it is evaluated afterwards, and is the same as in one go."""
    disk, one = Recorded(SMALL), turn("What is it that walks on four legs in the morning?")
    with Running(nano, disk) as with_disk, Running(nano) as without:
        job, tokens, events = with_disk.ask(one)
        _, wanted, _ = without.ask(one)
        np.testing.assert_array_equal(with_disk.logits, without.logits)
        assert disk.saved == [("cold", anchor(nano, one))]
    assert tokens == wanted and len(tokens) == 6
    assert (job.timing.reused_tokens, job.timing.prefill_tokens) == (0, len(job.ids))
    assert job.timing.prefill_s > 0
    told = [(event.done, event.total) for event in events if isinstance(event, Prefill)]
    assert told[0] == (0, len(job.ids)) and told[-1] == (len(job.ids), len(job.ids)) and told == sorted(told)


def test_continued_while_a_prompt_is_evaluated(nano: Engine) -> None:
    """ds4 KV 7.3, at the ends of chunks, beyond what was there already."""
    policy = Policy(32, cold_max=0, interval=500, align=512)
    disk = Recorded(policy)
    long = "One more thing that has to be said before the question is asked. "
    with Running(nano, disk) as running:
        first, *_ = running.ask(turn("What?", system=long * 65))
        assert 1024 < len(first.ids) < 1536
        assert disk.saved == [("continued", 512), ("continued", 1024)]
        disk.saved.clear()
        again, *_ = running.ask(turn("What?", system=long * 65))
        assert again.start is not None and again.start.cached > 1024 and disk.saved == []


def test_continued_while_an_answer_is_generated(nano: Engine) -> None:
    policy = Policy(32, cold_max=0, interval=16, align=16)
    disk = Recorded(policy)
    with Running(nano, disk) as running:
        job, tokens, _ = running.ask(turn("What is it?", n=40))
        first = len(job.ids)
        assert disk.saved[0] == ("continued", first), "passed while the prompt was evaluated, in one chunk"
        later = [pos for _, pos in disk.saved[1:]]
        assert later == [n for n in range(first + 1, first + len(tokens) + 1) if n % 16 == 0]


def test_none_inside_a_call_and_one_right_after_it(nano: Engine) -> None:
    """ds4 KV 6; 15, K10."""
    disk, engine = Recorded(Policy(32, cold_max=0, interval=8, align=8)), ScriptedEngine(nano.tokenizer)
    block = "".join(part.text for part in render_calls([ToolCall("f", '{"a":"one two three four five six"}')]))
    engine.say(script := nano.tokenizer.encode_rendered("Let me see what there is." + block))
    worker = ScriptedWorker(engine, ctx=CTX, sequences=Sequences(nano.tokenizer, disk=disk))  # type: ignore[arg-type]
    tools = (Schema('{"name":"f","parameters":{}}', "f"),)
    job = Asked(worker, turn("What is it?", n=500, tools=tools)).wait().job
    worker.sequences.disk = None
    worker.shut_down()
    first, end = len(job.ids), len(job.ids) + len(script)
    begun = first + script.index(nano.tokenizer.dsml, script.index(nano.tokenizer.dsml) + 1)  # behind its opening tag
    positions = [pos for reason, pos in disk.saved if reason == "continued"]
    assert any(first < pos <= begun for pos in positions) and positions[-1] >= end
    assert not any(begun < pos < end for pos in positions)


# --- what leaves memory


def test_sequences_that_leave_memory_are_written(nano: Engine) -> None:
    """ds4 KV 6, "evict": under what clients will send; not those that another one goes on from."""
    disk = Recorded(Policy(32, cold_max=0, interval=0))
    with Running(nano, disk, budget=0) as running:
        first, *_ = running.ask(turn("What is it?"))
        assert disk.saved == [], "the end of the prompt went, and what goes on from it stays"
        kept = running.worker.sequences.kept()
        running.ask(turn("Something else?", system=SYSTEM[50:]))
        assert disk.saved == [("evict", len(kept[0].tokens))]
        assert disk.texts == [kept[0].texts] and len(kept[0].tokens) > len(first.ids)
        disk.saved.clear()
    assert [reason for reason, _ in disk.saved] == ["shutdown"]


# --- going on


def test_after_a_restart_only_the_suffix_of_a_prompt_is_evaluated(nano: Engine, tmp_path: Path) -> None:
    """The bar of the whole thing: 2k tokens shared, another question, another process; the same answer as a cold
    start, bit for bit."""
    shared = " ".join(
        f"Rule {i}: what was said in rule {i // 2} holds again, unless {i % 7} things changed." for i in range(70)
    )
    one, two = turn("What is the first rule?", system=shared), turn("And which one is the last?", system=shared)
    assert anchor(nano, one) > 2048

    with Running(nano, Store.open(nano, tmp_path)) as running:
        running.ask(one)
    with Running(nano, Store.open(nano, tmp_path)) as running:
        job, tokens, _ = running.ask(two)
        logits = running.logits
    with Running(nano) as running:
        cold, wanted, _ = running.ask(two)
        np.testing.assert_array_equal(logits, running.logits)
    assert job.start is not None and cold.start is not None
    assert (job.start.source, job.start.cached) == ("disk-text", anchor(nano, two))
    assert job.timing.prefill_tokens == len(job.ids) - anchor(nano, two) < 40
    assert cold.timing.prefill_tokens == len(job.ids) > 2048
    assert tokens == wanted and job.start.tokens == cold.start.tokens


@pytest.fixture
def kept(nano: Engine, tmp_path: Path) -> Store:
    return Store.open(nano, tmp_path, policy=SMALL)


def test_the_longest_of_memory_and_disk(nano: Engine, kept: Store) -> None:
    tokenizer = nano.tokenizer
    one = turn("What is it? " * 10)
    ids = one.rendered().encode(tokenizer)
    session, source = nano.session(CTX), {}
    for in_memory, on_disk in ((40, 60), (60, 40), (60, 60)):
        sequences = Sequences(tokenizer, disk=kept)
        for path in kept.directory.path.glob("*.kv"):
            path.unlink()
        session.invalidate()
        session.sync(ids[:in_memory])
        sequences.keep(session, ())
        session.sync(ids[:on_disk])
        assert kept.save(session, (), "cold")
        start = sequences.begin(session, one.rendered(), ids)
        assert start.tokens == ids and start.cached == 60 == session.pos
        source[in_memory, on_disk] = start.source
    assert source == {(40, 60): "disk-text", (60, 40): "memory-token", (60, 60): "memory-token"}


def test_a_disk_that_fails_costs_nothing_but_time(nano: Engine, tmp_path: Path, monkeypatch) -> None:
    disk = Store.open(nano, tmp_path, policy=SMALL)

    def broken(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.directory, "writing", broken)
    monkeypatch.setattr(disk.directory, "matching", broken)
    with Running(nano, disk, budget=0) as running, Running(nano) as without:
        assert running.ask(turn("What is it?"))[1] == without.ask(turn("What is it?"))[1]
        assert running.ask(turn("Again?"))[1] == without.ask(turn("Again?"))[1]
    assert list(tmp_path.glob("*.kv*")) == []
