"""What a decoded token asks of the CUDA driver, counted by one that computes nothing."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref import backends
from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.cli import ds4
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.generate import Generation
from ds4ref.kernels.cuda import backend
from ds4ref.kernels.cuda.driver import gpu
from ds4ref.kernels.cuda.driver.memory import ALIGNMENT
from ds4ref.nano import mtp_path
from ds4ref.sampling import Sampler
from ds4ref.speed_bench import cli as bench

from .host_driver import HostDriver, bytes_of, instead_of_a_device


class Idle(HostDriver):
    """Launches nothing; memory begins with zeros, so that numbers read there are in range."""

    def alloc(self, nbytes: int) -> gpu.Block:
        block = super().alloc(nbytes)
        bytes_of(block)[:] = 0
        return block

    def run(self, call: Callable[[], None]) -> None:
        self._count("kernels")


def idle(driver: Idle | None = None) -> Any:
    """A context in which backends use a driver that computes nothing."""
    return instead_of_a_device(driver or Idle(), lambda *place: None)


@pytest.fixture
def engine(nano_path: str) -> Iterator[Engine]:
    with idle(), Engine.open(nano_path, backend="cuda", numerics="ds4") as engine:
        yield engine


def test_no_round_trip_and_no_allocation_inside_a_token(engine: Engine) -> None:
    """One graph, one wait at its end: over a window's end of either ratio, and whatever the position."""
    session, ops = engine.session(400), engine.model.ops
    session.extend(np.zeros(100, np.int32))
    counts: Counter[str] = ops.driver.watch()
    recorded = 0
    for position in range(100, 300):
        counts.clear()
        before = len(session._decoder._recordings)
        session.append(position % 7)
        counts.pop("kernels")
        if len(session._decoder._recordings) == before:
            assert counts == {"launch": 1, "sync": 1}, position
        else:
            recorded += 1
    assert 1 < recorded < 9


def test_a_draft_is_one_graph_and_one_wait(trained_path: str) -> None:
    """And moves streams by the host: those of the model, and its own where another draft follows."""
    with idle(), Engine.open(trained_path, backend="cuda", numerics="ds4") as engine:
        session, block = engine.session(100), Block.open(mtp_path(), engine.model)
        session.extend(np.zeros(20, np.int32))
        mtp, counts = Mtp(block), engine.model.ops.driver.watch()
        for drafts in (1, 1, 3):
            session.append(0)
            counts.clear()
            mtp.propose([0] * (session.pos + 1), session._streams, drafts)
            counts.pop("kernels")
            launches = counts.pop("launch")
        assert launches == counts.pop("sync") == drafts
        assert counts == {"to_host": drafts + 1, "to_device": drafts}


def test_sessions_share_what_was_recorded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one records nothing, and its tokens ask for as little; a third one of other sizes records anew."""
    made: list[int] = []
    record = type(engine.model).record_rows

    def counted(self: Any, recording: Any, caches: Any, *rest: Any) -> Any:
        made.append(caches[0].pos)
        return record(self, recording, caches, *rest)

    monkeypatch.setattr(type(engine.model), "record_rows", counted)
    ops, sizes = engine.model.ops, (400, 400, 900)
    recorded = []
    for size in sizes:
        session = engine.session(size)
        session.extend(np.zeros(100, np.int32))
        for token in range(8):
            session.append(token)
        recorded.append(len(made))
        counts = ops.driver.watch()
        session.append(1)
        counts.pop("kernels", None)
        assert counts == {"launch": 1, "sync": 1}, size
    assert recorded[0] == recorded[1] > 1 and recorded[2] > recorded[1]


def generated(engine: Engine, temperature: float, top_k: int, limit: int = 50) -> tuple[int, Counter[str], Any]:
    """Tokens that were made, what was asked of the driver meanwhile, and the session."""
    session, ops = engine.session(200), engine.model.ops
    session.extend([1, 2, 3])
    session.ranked(max(1, top_k))
    for token in range(8):  # one of every kind
        session.append(token)
    counts: Counter[str] = ops.driver.watch()
    sampler = Sampler(temperature, top_k=top_k, min_p=0.0, seed=3)
    before = session.pos
    list(Generation(session, engine.tokenizer, sampler, limit=limit))  # the sampler may draw the end of the text
    counts.pop("kernels")
    return session.pos - before, counts, session


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (1.0, 40)], ids=["greedy", "top-k"])
def test_choosing_the_next_token_asks_the_device_nothing(engine: Engine, temperature: float, top_k: int) -> None:
    """The best come with the replay, nothing else: no logits, no streams, no allocation."""
    made, counts, session = generated(engine, temperature, top_k)
    assert made > 10 and counts == {"launch": made, "sync": made}
    brought = {sum(values.nbytes for values, _ in r._graph.fetch) for r, _ in session._decoder._recordings.values()}
    ranks = max(top_k, 2)
    assert brought == {ALIGNMENT * -(-4 * ranks // ALIGNMENT) + 4 * ranks + 4}  # values, ids, error flag
    assert max(brought) < 4 * engine.shape.vocab / 16
    session.top_logprobs(5)
    _ = session.logits, session.streams, session.streams
    assert counts["to_host"] == 2, "logits once and streams once, because somebody asked"


def test_a_token_drawn_from_all_brings_its_logits_once(engine: Engine) -> None:
    made, counts, session = generated(engine, 1.0, 0)
    # those of the last token, which nobody looked at, stay where they are
    assert made > 10 and counts == {"launch": made, "sync": made, "to_host": made}
    session.append(1)
    session.top_logprobs(5)
    assert counts["to_host"] == made + 1


class Zeros(Idle):
    """Whatever the host asks for is 0."""

    def to_host(self, values: np.ndarray, block: gpu.Block, offset: int) -> None:
        self._count("to_host")
        values[...] = 0


@pytest.fixture
def crowded(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], Engine]]:
    """Opens an engine half of whose experts have slots, on a host with so much memory."""

    def prepare(self: Any, nbytes: int, of_experts: int) -> None:
        self.share = 0.5

    def opened(host_memory: int | None) -> Engine:
        monkeypatch.setattr(backends, "memory_bytes", lambda: host_memory)
        return engines.enter_context(Engine.open(nano_path, backend="cuda", numerics="ds4"))

    monkeypatch.setattr(backend.CUDA, "prepare", prepare)
    with ExitStack() as engines:
        engines.enter_context(idle(Zeros()))
        yield opened


def test_where_experts_do_not_fit_a_token_waits_as_often(crowded: Callable[[int | None], Engine]) -> None:
    """One graph and one wait; its counts come with it."""
    engine = crowded(None)
    session, ops = engine.session(200), engine.model.ops
    session.extend([1, 2, 3])
    for token in range(8):
        session.append(token)
    counts: Counter[str] = ops.driver.watch()
    for token in range(8):
        session.append(token)
    counts.pop("kernels")
    assert counts == {"launch": 8, "sync": 8}
    brought = [values.nbytes for values, _ in session._decoder.last._graph.fetch]
    assert 8 * engine.shape.n_layers * engine.shape.n_experts in brought


@pytest.mark.thorough
def test_without_memory_for_experts_a_token_waits_once_a_layer(crowded: Callable[[int | None], Engine]) -> None:
    """The exception: the host looks at the ids of every layer, and at the logits, each with the error flag; nothing is
    recorded. Once the experts are there nothing is fetched, and memory that one token gave back serves the next."""
    engine = crowded(0)
    session, ops = engine.session(200), engine.model.ops
    session.extend([1, 2, 3])
    counts: Counter[str] = ops.driver.watch()
    for token in range(8):
        session.eval(token)
    gc.disable()  # nothing may be left to the garbage collector
    try:
        for token in range(24):
            counts.clear()
            session.eval(token % 5)
            assert counts["to_host"] <= 2 * engine.shape.n_layers + 2 + 2 * engine.shape.n_hash_layers
            assert not counts.keys() & {"launch", "begin_copy", "sync", "alloc"}, (token, counts)
    finally:
        gc.enable()


def test_a_token_is_one_graph_with_one_copy_in_and_two_out(engine: Engine) -> None:
    session = engine.session(40)
    session.extend([1, 2, 3])
    session.eval(4)
    recording = session._decoder.last
    assert recording.nodes == len(recording.launches) + 3


def test_an_op_by_op_token_would_be_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters do count."""
    session, ops = engine.session(40), engine.model.ops
    session.extend([1, 2, 3])
    counts = ops.driver.watch()
    session.extend([4])
    assert counts["kernels"] > 100 and counts["to_host"] >= 1


def test_fewer_places_than_results(engine: Engine) -> None:
    """Liveness shares memory: the results of all ops of a token would take many times as much."""
    session = engine.session(40)
    session.extend([1, 2, 3])
    session.eval(4)
    recording: Any = session._decoder.last
    made = {id(a.buffer): a.buffer.nbytes for launch in recording.launches for a in launch.writes}
    assert recording.nbytes < sum(made.values()) / 4


@pytest.mark.thorough
def test_the_commands_run_on_it(nano_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """From flags to graphs and back. What is computed is nothing, so nothing is said about it."""
    csv = tmp_path / "a.csv"
    sweep = ["--ctx-start", "16", "--ctx-max", "32", "--step-incr", "16", "--gen-tokens", "2", "--csv", str(csv)]
    with idle():
        assert ds4.main(["-m", nano_path, "--cuda", "-p", "Why?", "-n", "3", "--temp", "0"]) == 0
        assert bench.main(["-m", nano_path, "--backend", "cuda", *sweep]) == 0
        assert len(csv.read_text().splitlines()) == 3
        capsys.readouterr()
        assert ds4.main(["-m", nano_path, "--cuda", "--gpu-memory", "0.001", "-p", "Why?", "-n", "1"]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "GiB of GPU memory" in lines[0]
