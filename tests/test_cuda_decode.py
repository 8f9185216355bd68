"""What a decoded token asks of the CUDA driver, counted by one that computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.cli import ds4
from ds4ref.engine import Engine
from kernels.cuda import backend, driver
from speed_bench import cli as bench


class Idle(driver.Simulated):
    """Launches kernels by not doing so; memory begins with zeros, so that numbers found there are in range."""

    def alloc(self, nbytes: int) -> driver.Block:
        block = super().alloc(nbytes)
        assert block.memory is not None
        block.memory[:] = 0
        return block

    def run(self, call: Callable[[], None]) -> None:
        self._count("kernels")


@pytest.fixture
def engine(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(backend, "open_driver", lambda number: Idle())
    with Engine.open(nano_path, backend="cuda", numerics="ds4") as engine:
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
        session.eval(position % 7)
        counts.pop("kernels")
        if len(session._decoder._recordings) == before:
            assert counts == {"launch": 1, "sync": 1}, position
        else:
            recorded += 1
    assert 1 < recorded < 9


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


def test_the_commands_run_on_it(nano_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """From flags to graphs and back. What is computed is nothing, so nothing is said about it."""
    monkeypatch.setattr(backend, "open_driver", lambda number: Idle())
    assert ds4.main(["-m", nano_path, "--cuda", "-p", "Why?", "-n", "3", "--temp", "0"]) == 0
    csv = tmp_path / "a.csv"
    sweep = ["--ctx-start", "16", "--ctx-max", "32", "--step-incr", "16", "--gen-tokens", "2", "--csv", str(csv)]
    assert bench.main(["-m", nano_path, "--backend", "cuda", *sweep]) == 0
    assert len(csv.read_text().splitlines()) == 3
    monkeypatch.setenv("DS4_GPU_MEMORY", "0.0001")
    capsys.readouterr()
    assert ds4.main(["-m", nano_path, "--cuda", "-p", "Why?", "-n", "1"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "GiB of GPU memory" in said[0]
