"""Jobs of many units: done once, resumed, and not lost with a worker. The clusters are real ones, of processes."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.runs import fanout
from ds4ref.runs.fanout import cluster, fan_out
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
    path = tmp_path / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def workers():
    """Two worker processes, where a unit is given up after two of them died."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as here,
        distributed.Client(here) as client,
    ):
        yield here.scheduler_address
        client.wait_for_workers(2, timeout=30)  # closing while a worker is being replaced may hang


def test_units_are_done_once_and_kept(store, tmp_path, workers):
    seen = []
    outcome = fan_out("job", units(tmp_path), work.square, store, scheduler=workers,
                      progress=lambda *a: seen.append(a))  # fmt: skip
    assert sorted(outcome.done) == [f"u{x}" for x in range(6)] and not outcome.failed and not outcome.before
    assert {name: found["square"] for name, found in outcome.results.items()} == {f"u{x}": x * x for x in range(6)}
    assert not outcome.remaining
    assert seen[0] == (0, 6) and seen[-1] == (6, 6) and seen == sorted(seen)
    found = Job(store, "job").units()
    assert {name: unit.result for name, unit in found.items()} == outcome.results
    for unit in found.values():
        assert unit.result["runs"] == [unit.run]
        assert store.run(unit.run).facts == {"x": int(unit.name[1:])} and store.rows(unit.run)


def test_what_is_done_is_not_done_again(store, tmp_path, workers, monkeypatch):
    first = units(tmp_path, 3)
    fan_out("job", first, work.square, store, scheduler=workers)
    outcome = fan_out("job", units(tmp_path), work.square, store, scheduler=workers)
    assert outcome.before == ["u0", "u1", "u2"] and sorted(outcome.done) == ["u3", "u4", "u5"]
    assert outcome.results["u1"]["square"] == 1 and outcome.results["u5"]["square"] == 25
    assert len(log(tmp_path)) == 6 and len(store.runs()) == 6
    assert len(fan_out("another job", first, work.square, store, scheduler=workers).done) == 3
    monkeypatch.setitem(sys.modules, "distributed", None)  # a job without anything to do asks no cluster
    again = fan_out("job", units(tmp_path), work.square, store, scheduler=workers)
    assert len(again.before) == 6 and not again.done and len(log(tmp_path)) == 9


def test_a_unit_that_fails_costs_itself_and_is_tried_again(store, tmp_path, workers):
    broken = tmp_path / "broken"
    broken.touch()
    todo = units(tmp_path)
    todo["u2"]["fail"] = str(broken)
    outcome = fan_out("job", todo, work.square, store, scheduler=workers)
    assert outcome.failed == {"u2": "no 2 today"} and len(outcome.done) == 5
    unit = Job(store, "job").units()["u2"]
    assert (unit.done, unit.error, unit.attempts) == (False, "no 2 today", 1)
    broken.unlink()
    outcome = fan_out("job", todo, work.square, store, scheduler=workers)
    assert outcome.done == ["u2"] and len(outcome.before) == 5
    unit = Job(store, "job").units()["u2"]
    assert (unit.done, unit.error, unit.attempts) == (True, None, 2)


def test_a_unit_done_twice_leaves_its_runs_once(store):
    job, run = Job(store, "job"), {"kind": "bench", "facts": {}, "rows": []}
    kept = job.finish("u", {"x": 1}, [run, run])
    assert kept == {"x": 1, "runs": [1, 2]}
    assert job.finish("u", {"x": 2}, [run]) == kept == job.units()["u"].result and len(store.runs()) == 2
    assert job.finish("v", {}) == {"runs": []} and job.units()["v"].run is None


@pytest.mark.thorough
def test_no_more_workers_than_units_that_wait(store, tmp_path, workers, monkeypatch):
    started = []

    @contextmanager
    def here(scheduler, count):
        started.append(count)
        with cluster(workers) as client:
            yield client

    monkeypatch.setattr(fanout, "cluster", here)
    fan_out("job", units(tmp_path, 2), work.square, store, workers=8)
    fan_out("job", units(tmp_path, 5), work.square, store, workers=8)
    fan_out("job", units(tmp_path, 9), work.square, store, workers=2)
    assert started == [2, 3, 2]


@pytest.mark.parametrize("count, rounds", [(1, [["u0"]]), (2, [["u0", "u1"], ["u0"], ["u1"]])])
def test_killers_are_tried_alone_once_more_if_they_were_not_alone(count, rounds, tmp_path, monkeypatch):
    """A unit that kills its worker costs minutes each time."""
    tried = []

    def finished(client, work, units, *rest):
        tried.append(list(units))
        yield from ((name, fanout.KILLED, None) for name in units)

    monkeypatch.setattr(fanout, "_finished", finished)
    found = list(fanout._results(None, work.square, units(tmp_path, count), lambda: None, print, None))
    assert tried == rounds and found == [(f"u{i}", fanout.KILLED, None) for i in range(count)]


def test_what_is_received_is_what_is_kept(store, tmp_path, workers):
    def receive(name, result):
        result["runs"][0]["label"] = f"of {name}"
        return {**result, "square": result["square"] + 1}

    outcome = fan_out("job", units(tmp_path, 2), work.square, store, scheduler=workers, receive=receive)
    assert {name: found["square"] for name, found in outcome.results.items()} == {"u0": 1, "u1": 2}
    assert sorted(run.label for run in store.runs()) == ["of u0", "of u1"]


def test_schedulers_that_cannot_be(store, tmp_path, monkeypatch):
    for bad in ("foo://here:1", "tcp://", "tcp://127.0.0.1:http"):
        with pytest.raises(UsageError, match="is no address of a Dask scheduler and no scheduler file"):
            fan_out("job", units(tmp_path), work.square, store, scheduler=bad)
    wrong = tmp_path / "scheduler.json"
    for content in ("not JSON", "[]", "{}"):
        wrong.write_text(content)
        with pytest.raises(UsageError, match="no scheduler file"):
            fan_out("job", units(tmp_path), work.square, store, scheduler=str(wrong))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'ds4ref\[fanout\]'"):
        fan_out("job", units(tmp_path), work.square, store)


@pytest.mark.thorough
def test_nobody_answers(store, tmp_path, monkeypatch):
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        real = distributed.Client
        monkeypatch.setattr(distributed, "Client", lambda address, timeout: real(address, timeout="1s"))
        with pytest.raises(DataError, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
            fan_out("job", units(tmp_path), work.square, store, scheduler="tcp://127.0.0.1:9")


def test_a_scheduler_file_or_dasks_own_setting_names_the_cluster(tmp_path, workers):
    import dask

    with distributed.Client(workers) as client:
        path = tmp_path / "scheduler.json"  # as Dask writes it, which fails once a worker has measured a task
        path.write_text(json.dumps(client.scheduler_info() | {"workers": {}}))
    with cluster(str(path)) as client:
        assert client.scheduler.address == workers and len(client.nthreads()) == 2
    with dask.config.set({"scheduler-address": workers}), cluster() as client:
        assert client.scheduler.address == workers
    with cluster(workers.removeprefix("tcp://")) as client:
        assert client.scheduler.address == workers


def kill_one(tmp_path, after: int, killed: list[str]) -> threading.Thread:
    """Kills the worker process that began the last unit, once ``after`` of them have begun."""

    def kill():
        while len(log(tmp_path)) < after:
            time.sleep(0.02)
        killed.append(log(tmp_path)[-1][1])
        os.kill(int(killed[0]), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.thorough
def test_eight_units_three_workers_one_killed(store, tmp_path):
    """Every unit is in the store once, none is lost, and the dashboard's address was told."""
    killed, told = [], []
    killer = kill_one(tmp_path, 5, killed)
    todo = units(tmp_path, 8, seconds=0.4)
    outcome = fan_out("job", todo, work.square, store, workers=3, tell=told.append)
    killer.join()
    assert sorted(outcome.done) == sorted(todo) and not outcome.failed and not outcome.remaining
    assert sorted(run.facts["x"] for run in store.runs()) == list(range(8))
    assert all(unit.done for unit in Job(store, "job").units().values())
    began: dict[str, list[str]] = {}
    for x, pid in log(tmp_path):
        began.setdefault(x, []).append(pid)
    assert len(began) == 8 and str(os.getpid()) not in {pid for _, pid in log(tmp_path)}
    twice = [pids for pids in began.values() if len(pids) > 1]
    assert twice and all(killed[0] in pids for pids in twice)
    assert told[0].startswith("dashboard: http://127.0.0.1:")


@pytest.mark.thorough
def test_a_unit_that_kills_every_worker_fails_alone_and_is_resumed(store, tmp_path, workers):
    poison = tmp_path / "poison"
    poison.touch()
    todo = units(tmp_path, 5, fail=str(poison))
    outcome = fan_out("job", todo, work.deadly, store, scheduler=workers)
    assert outcome.failed == {"u3": "its worker died each time it was tried"} and len(outcome.done) == 4
    poison.unlink()
    outcome = fan_out("job", todo, work.deadly, store, scheduler=workers)
    assert outcome.done == ["u3"] and len(outcome.before) == 4


@contextmanager
def lone_workers():
    """A scheduler without workers, and what starts one that nothing replaces."""
    started = []
    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as here:

        def start():
            command = [sys.executable, "-m", "distributed.cli.dask_worker", here.scheduler_address, "--no-nanny",
                       "--no-dashboard", "--nthreads", "1"]  # fmt: skip
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        try:
            yield here.scheduler_address, start, started
        finally:
            for process in started:
                process.kill()
                process.wait()


@pytest.mark.thorough
def test_a_result_lost_with_its_worker_is_computed_again(store, tmp_path):
    bomb = tmp_path / "bomb"
    bomb.touch()
    with lone_workers() as (address, start, _):

        def tell(line):
            if line == "the cluster has no worker: waiting for one":
                bomb.unlink()
                start()

        start()
        outcome = fan_out(
            "job", units(tmp_path, 1, fail=str(bomb)), work.dies_when_asked, store, scheduler=address, tell=tell
        )
    assert outcome.results["u0"]["square"] == 0 and outcome.done == ["u0"]
    assert len(log(tmp_path)) == 2 and not bomb.exists()


@pytest.mark.thorough
def test_a_stop_drops_what_frozen_workers_run(store, tmp_path, monkeypatch):
    monkeypatch.setattr(fanout, "ANSWER", 0.5)
    with lone_workers() as (address, start, started):
        start()

        def cancel():
            if not log(tmp_path):
                return False
            os.kill(started[0].pid, signal.SIGSTOP)
            return True

        outcome = fan_out("job", units(tmp_path, 2, seconds=3600), work.square, store, scheduler=address, cancel=cancel)
    assert sorted(outcome.remaining) == ["u0", "u1"] and not outcome.done


@pytest.mark.thorough
def test_what_fails_while_a_cluster_closes_is_not_logged():
    with cluster():
        pass
    assert not logging.getLogger("distributed.scheduler").isEnabledFor(logging.ERROR)


def test_workers_that_do_not_start_are_one_line(store, tmp_path, monkeypatch):
    monkeypatch.setattr(fanout, "DEAF", "import os; os._exit(1)")
    with pytest.raises(DataError, match=r"1 worker\(s\) do not start: "):
        fan_out("job", units(tmp_path, 1), work.square, store)


@pytest.mark.parametrize(("count", "seconds"), [(12, 0.3), (4, 1.0)])  # of four, two wait in the workers' queues
def test_a_stop_waits_for_what_runs_and_the_next_call_does_the_rest(store, tmp_path, workers, count, seconds):
    todo, told = units(tmp_path, count, seconds=seconds), []
    outcome = fan_out("job", todo, work.square, store, scheduler=workers, tell=told.append,
                      cancel=lambda: len(log(tmp_path)) >= 2)  # fmt: skip
    assert 2 <= len(outcome.done) < count and not outcome.failed
    assert sorted([*outcome.done, *outcome.remaining]) == sorted(todo)
    assert sorted(f"u{x}" for x, _ in log(tmp_path)) == sorted(outcome.done)
    assert "unit(s) that run are waited for" in told[1]
    rest = fan_out("job", todo, work.square, store, scheduler=workers)
    assert sorted(rest.before) == sorted(outcome.done) and sorted(rest.done) == sorted(outcome.remaining)
    assert len(store.runs()) == count


def test_an_exception_in_the_middle_keeps_what_is_done(store, tmp_path, workers):
    """As a second Ctrl-C does, which raises wherever this process is."""

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out("job", units(tmp_path), work.square, store, scheduler=workers, progress=interrupt)
    assert sum(unit.done for unit in Job(store, "job").units().values()) == 3 == len(store.runs())
    assert len(fan_out("job", units(tmp_path), work.square, store, scheduler=workers).before) == 3


@pytest.mark.slow
def test_a_scheduler_that_goes_away_loses_nothing_that_was_done(store, tmp_path):
    here = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    )

    closer = threading.Thread(target=here.close)

    def end(done, total):
        if done == 2 and not closer.ident:
            closer.start()

    todo = units(tmp_path, 6, seconds=0.5)
    with pytest.raises(DataError, match="the Dask scheduler went away; the same command does what is missing"):
        fan_out("job", todo, work.square, store, scheduler=here.scheduler_address, progress=end)
    closer.join()
    assert 2 <= len(store.runs()) < 6
