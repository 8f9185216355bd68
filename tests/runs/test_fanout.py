"""Jobs of many units: done once, resumed, and not lost with a worker. The cluster is a real one, of processes."""

import os
import signal
import sys
import threading
import time

import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.runs.fanout import fan_out
from ds4ref.runs.store import Store
from ds4ref.runs.store.units import Job

from . import work

distributed = pytest.importorskip("distributed", reason="extra 'fanout' is not installed")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs.sqlite") as store:
        yield store


def units(tmp_path, count=6, **more):
    return {f"u{x}": {"x": x, "log": str(tmp_path / "log"), **more} for x in range(count)}


def log(tmp_path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()]


def test_threads_of_this_process(store, tmp_path):
    seen = []
    outcome = fan_out("job", units(tmp_path), work.square, store, workers=3, progress=lambda *a: seen.append(a))
    assert sorted(outcome.done) == [f"u{x}" for x in range(6)] and not outcome.failed and not outcome.before
    assert seen[0] == (0, 6) and seen[-1] == (6, 6)
    found = Job(store, "job").units()
    assert {name: unit.result for name, unit in found.items()} == {f"u{x}": {"square": x * x} for x in range(6)}
    for unit in found.values():
        assert store.run(unit.run).facts == {"x": int(unit.name[1:])} and store.rows(unit.run)


def test_what_is_done_is_not_done_again(store, tmp_path):
    first = units(tmp_path, 3)
    fan_out("job", first, work.square, store)
    outcome = fan_out("job", units(tmp_path), work.square, store)
    assert outcome.before == ["u0", "u1", "u2"] and sorted(outcome.done) == ["u3", "u4", "u5"]
    assert len(log(tmp_path)) == 6 and len(store.runs()) == 6
    again = fan_out("job", units(tmp_path), work.square, store)
    assert len(again.before) == 6 and not again.done and len(log(tmp_path)) == 6
    assert len(fan_out("another job", first, work.square, store).done) == 3


def test_a_unit_that_fails_costs_itself_and_is_tried_again(store, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    todo = units(tmp_path)
    todo["u2"]["fail"] = str(broken)
    outcome = fan_out("job", todo, work.square, store)
    assert outcome.failed == {"u2": "no 2 today"} and len(outcome.done) == 5
    unit = Job(store, "job").units()["u2"]
    assert (unit.done, unit.error, unit.attempts) == (False, "no 2 today", 1)
    broken.unlink()
    outcome = fan_out("job", todo, work.square, store)
    assert outcome.done == ["u2"] and len(outcome.before) == 5
    unit = Job(store, "job").units()["u2"]
    assert (unit.done, unit.error, unit.attempts) == (True, None, 2)


def test_a_unit_done_twice_leaves_one_run(store):
    job = Job(store, "job")
    one = job.finish("u", {"x": 1}, {"kind": "bench", "facts": {}, "rows": []})
    assert job.finish("u", {"x": 2}, {"kind": "bench", "facts": {}, "rows": []}) == one
    assert job.units()["u"].result == {"x": 1} and len(store.runs()) == 1


def test_schedulers_that_cannot_be(store, tmp_path, monkeypatch):
    for bad in ("processes:0", "processes", "localhost:80", "tcp://"):
        with pytest.raises(UsageError, match=r"processes:N or tcp://HOST:PORT"):
            fan_out("job", units(tmp_path), work.square, store, scheduler=bad)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'ds4ref\[fanout\]'"):
        fan_out("job", units(tmp_path), work.square, store, scheduler="processes:2")


@pytest.fixture(scope="module")
def cluster():
    import dask

    quiet = {"distributed.admin.log-length": 0, "distributed.scheduler.allowed-failures": 1}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster
        client.wait_for_workers(2, timeout=30)  # closing while a worker is being replaced may hang


def test_a_killed_worker_costs_only_its_unit(store, tmp_path, cluster):
    """Two worker processes, twelve units; one worker is killed in the middle. Every unit is done, and the only ones
    that ran twice were on the dead worker."""

    def kill():
        while not (tmp_path / "log").exists() or len(log(tmp_path)) < 4:
            time.sleep(0.02)
        victims.append(log(tmp_path)[-1][1])
        os.kill(int(victims[0]), signal.SIGKILL)

    victims: list[str] = []
    killer = threading.Thread(target=kill)
    killer.start()
    todo = units(tmp_path, 12, seconds=0.25)
    outcome = fan_out("job", todo, work.square, store, scheduler=cluster.scheduler_address)
    killer.join()
    assert sorted(outcome.done) == sorted(todo) and not outcome.failed
    assert len(store.runs()) == 12 and all(unit.done for unit in Job(store, "job").units().values())
    ran: dict[str, list[str]] = {}
    for x, pid in log(tmp_path):
        ran.setdefault(x, []).append(pid)
    twice = {x: pids for x, pids in ran.items() if len(pids) > 1}
    assert all(victims[0] in pids for pids in twice.values())
    assert len(ran) == 12 and victims[0] in {pid for _, pid in log(tmp_path)}


def test_a_unit_that_kills_every_worker_fails_alone_and_is_resumed(store, tmp_path, cluster):
    poison = tmp_path / "poison"
    poison.touch()
    todo = units(tmp_path, 5, fail=str(poison))
    outcome = fan_out("job", todo, work.deadly, store, scheduler=cluster.scheduler_address)
    assert outcome.failed == {"u3": "its worker died each time it was tried"} and len(outcome.done) == 4
    poison.unlink()
    outcome = fan_out("job", todo, work.deadly, store, scheduler=cluster.scheduler_address)
    assert outcome.done == ["u3"] and len(outcome.before) == 4


def test_processes_of_its_own(store, tmp_path):
    outcome = fan_out("job", units(tmp_path, 3), work.square, store, scheduler="processes:2")
    assert sorted(outcome.done) == ["u0", "u1", "u2"]
    assert str(os.getpid()) not in {pid for _, pid in log(tmp_path)}


def test_nobody_answers(store, tmp_path, monkeypatch):
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        real = distributed.Client
        monkeypatch.setattr(distributed, "Client", lambda address, timeout: real(address, timeout="1s"))
        with pytest.raises(DataError, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
            fan_out("job", units(tmp_path), work.square, store, scheduler="tcp://127.0.0.1:9")
