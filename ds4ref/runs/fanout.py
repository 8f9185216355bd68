"""Jobs that outgrow one process or one machine: units of work over threads here or Dask workers anywhere.

A unit is a name and arguments; ``work`` is an importable function of the arguments that returns plain data. Only this
process writes to the store, and a unit is written when it is done, so that an interrupted job goes on where it stopped
and a lost worker costs no more than the unit it was busy with, which Dask gives to another one.

    fan_out("quants", {"q2": {...}, "q4": {...}}, measure, store, scheduler="tcp://10.0.0.1:8786")

``scheduler``: None for threads of this process, ``processes:N`` for N worker processes here, an address for a cluster
whose workers have this package installed. The last two need the extra ``fanout``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError, Ds4Error, UsageError
from .store import Store
from .store.units import Job

Work = Callable[[Any], dict[str, Any]]


@dataclass
class Outcome:
    """Names of the units: done now, done before, failed (with the reason)."""

    done: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def fan_out(
    job: str,
    units: Mapping[str, Any],
    work: Work,
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Do what is not done yet. A result may hold a run under "run" (arguments of ``Store.add``), which is kept.

    A unit that fails is recorded and the others go on; failed units are tried again by the next call. UsageError for
    a scheduler that cannot be reached or used.
    """
    table = Job(store, job)
    table.declare(units)
    known = table.units()
    outcome = Outcome(before=[name for name in units if known[name].done])
    waiting = {name: arguments for name, arguments in units.items() if not known[name].done}
    count = len(outcome.before)
    if progress is not None:
        progress(count, len(units))
    if not waiting:
        return outcome
    with _executor(scheduler, workers) as run:
        for name, error, result in run(work, waiting):
            if error is not None:
                outcome.failed[name] = error
                table.fail(name, error)
            else:
                kept = dict(result or {})
                table.finish(name, {k: v for k, v in kept.items() if k != "run"}, kept.get("run"))
                outcome.done.append(name)
            count += 1
            if progress is not None:
                progress(count, len(units))
    return outcome


Results = Iterator[tuple[str, str | None, dict[str, Any] | None]]
Runner = Callable[[Work, Mapping[str, Any]], Results]


@contextmanager
def _executor(scheduler: str | None, workers: int) -> Iterator[Runner]:
    if scheduler is None:
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="unit") as pool:
            yield lambda work, units: _local(pool, work, units)
        return
    with _client(scheduler) as client:
        yield lambda work, units: _distributed(client, work, units)


def _local(pool: ThreadPoolExecutor, work: Work, units: Mapping[str, Any]) -> Results:
    futures: dict[Future[dict[str, Any]], str] = {pool.submit(work, args): name for name, args in units.items()}
    try:
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], None if error is None else _why(error), None if error else future.result()
    finally:
        for future in futures:
            future.cancel()  # after Ctrl-C: what has not begun need not


@contextmanager
def _client(scheduler: str) -> Iterator[Any]:
    """A Dask client; a cluster that was started for it ends with it."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError("--scheduler needs Dask: pip install 'ds4ref[fanout]'") from None
    match = re.fullmatch(r"processes:([1-9][0-9]{0,3})", scheduler)
    if match is not None:
        count = int(match.group(1))
        with (
            LocalCluster(
                n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster) as client,
        ):
            try:
                yield client
            finally:
                # A cluster that closes while a dead worker is being replaced may never end.
                with suppress(TimeoutError):
                    client.wait_for_workers(count, timeout=30)
        return
    if not re.fullmatch(r"(tcp|tls|ws|wss)://[^\s/]+:[0-9]+", scheduler):
        raise UsageError(f"unknown scheduler {scheduler!r}: processes:N or tcp://HOST:PORT")
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, TimeoutError) as error:
        raise DataError(f"no Dask scheduler answers at {scheduler}: {_why(error)}") from None
    with client:
        yield client


def _distributed(client: Any, work: Work, units: Mapping[str, Any]) -> Results:
    """One unit a thread at a time: what waits in a dying worker's queue would be blamed for its death, and what lies
    finished on one would be lost."""
    from distributed import as_completed as completed

    waiting = iter(units)
    names: dict[str, str] = {}

    def submit(count: int) -> list[Any]:
        futures = []
        for name in itertools.islice(waiting, count):
            # Units are measurements: equal arguments do not mean equal results.
            futures.append(client.submit(work, units[name], pure=False))
            names[futures[-1].key] = name
        return futures

    running = completed(submit(max(1, sum(client.nthreads().values()))))
    try:
        for future in running:
            name = names.pop(future.key)
            if future.status == "finished":
                found: tuple[str, str | None, dict[str, Any] | None] = name, None, future.result()
            else:
                found = name, _why(future.exception()), None
            for more in submit(1):
                running.add(more)
            yield found
    finally:
        client.cancel(list(names))


def _why(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return "its worker died each time it was tried"
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, Ds4Error) and text else f"{type(error).__name__}: {text}".rstrip(": ")
