"""What a decoded token asks of the CUDA driver, counted by one that computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.dspark import Drafter
from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.drafts.dspark import DSpark
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.generate import Generation
from ds4ref.kernels.cuda.driver import gpu
from ds4ref.kernels.cuda.driver.memory import ALIGNMENT
from ds4ref.nano import dspark_path, mtp_path
from ds4ref.sampling import Sampler

from .host_driver import HostDriver, bytes_of, instead_of_a_device


class Idle(HostDriver):
    """Launches nothing; memory begins with zeros, so that numbers read there are in range."""

    def alloc(self, nbytes: int) -> gpu.Block:
        block = super().alloc(nbytes)
        bytes_of(block)[:] = 0
        return block

    def run(self, call: Callable[[], None]) -> None:
        self.counts["kernels"] += 1


def idle() -> Any:
    """A context in which backends use a driver that computes nothing."""
    return instead_of_a_device(Idle(), lambda *place: None)


@pytest.fixture
def engine(nano_path: str) -> Iterator[Engine]:
    with idle(), Engine.open(nano_path, backend="cuda", numerics="ds4") as engine:
        yield engine


def counted(engine: Engine) -> Counter[str]:
    counts: Counter[str] = engine.model.ops.driver.counts
    counts.clear()
    return counts


def test_a_token_is_one_graph_and_one_wait_and_its_launches_are_joined(engine: Engine) -> None:
    """Whatever the position, over a window's end of either ratio; another session records nothing."""
    made = []
    for size in (400, 400, 900):
        session = engine.session(size)
        session.extend(np.zeros(100, np.int32))
        counts = counted(engine)
        for position in range(100, 240):
            counts.clear()
            before = len(session._decoder._recordings)
            session.append(position % 7)
            if len(session._decoder._recordings) == before:
                assert {name: n for name, n in counts.items() if name != "kernels"} == {"launch": 1, "sync": 1}
        made.append(len(session._decoder._recordings))
    assert 1 < made[0] < 9 and made == [made[0]] * 3
    recordings = [recording for recording, _ in session._decoder._recordings.values()]
    assert {launch.function.__name__ for r in recordings for launch in r.launches} >= {"multiply_both", "chain_store"}
    last = session._decoder.last
    assert (len(last._graph._refresh), len(last._graph.fetch)) == (1, 2), "one copy in and two out"
    results = {id(a.buffer): a.buffer.nbytes for launch in last.launches for a in launch.writes}
    assert last.nbytes < sum(results.values()) / 4, "places share memory"


def test_a_draft_is_one_graph_and_one_wait(trained_path: str) -> None:
    """And moves streams by the host: those of the model, and its own where another draft follows."""
    with idle(), Engine.open(trained_path, backend="cuda", numerics="ds4") as engine:
        session, block = engine.session(100), Block.open(mtp_path(), engine.model)
        session.extend(np.zeros(20, np.int32))
        mtp = Mtp(block)
        for drafts in (1, 1, 3):
            session.append(0)
            counts = counted(engine)
            mtp.propose([0] * (session.pos + 1), session._streams, drafts)
        assert counts.pop("kernels") and counts.pop("launch") == counts.pop("sync") == drafts
        assert counts == {"to_host": drafts + 1, "to_device": drafts}


def test_a_block_of_dspark_is_one_graph_and_one_wait(trained_path: str) -> None:
    """Whatever the number of rows before it; only the chain of pairs is op by op."""
    with idle(), Engine.open(trained_path, backend="cuda", numerics="ds4") as engine:
        drafter = Drafter.open(dspark_path(), engine.model)
        source = DSpark(drafter)
        for count in (3, 1, 90):
            drafter.inject(np.zeros((count, 3, drafter.shape.dim), np.float32), source._rows)
            counts = counted(engine)
            source._block(7)
            if count != 3:  # the first one records
                assert counts.pop("kernels") and counts == {"launch": 1, "sync": 1}


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (1.0, 40), (1.0, 0)], ids=["greedy", "top-k", "all"])
def test_choosing_the_next_token_brings_no_more_than_it_needs(engine: Engine, temperature: float, top_k: int) -> None:
    """The best come with the replay; a token drawn from all brings its logits once."""
    session = engine.session(200)
    session.extend([1, 2, 3])
    session.ranked(max(1, top_k))
    for token in range(8):  # one of every kind
        session.append(token)
    counts, before = counted(engine), session.pos
    sampler = Sampler(temperature, top_k=top_k, min_p=0.0, seed=3)
    list(Generation(session, engine.tokenizer, sampler, limit=50))  # the sampler may draw the end of the text
    made, whole = session.pos - before, temperature and not top_k
    counts.pop("kernels")
    assert made > 10 and counts == {"launch": made, "sync": made} | ({"to_host": made} if whole else {})
    if not whole:
        brought = {sum(values.nbytes for values, _ in r._graph.fetch) for r, _ in session._decoder._recordings.values()}
        ranks = max(top_k, 2)
        assert brought == {ALIGNMENT * -(-4 * ranks // ALIGNMENT) + 4 * ranks + 4}  # values, ids, error flag
        session.top_logprobs(5)
        _ = session.logits, session.streams, session.streams
        assert counts["to_host"] == 2, "logits once and streams once, because somebody asked"
