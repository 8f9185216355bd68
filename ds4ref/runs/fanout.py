"""Large jobs as resumable units over the workers of a Dask cluster.

A unit is a name and arguments; ``work`` is an importable function of the arguments that returns plain data. Only this
process writes to the store, and each unit is written when done, so that an interrupted job resumes where it stopped and
a lost worker costs only its unfinished units, which Dask reassigns.

    fan_out("quants", {"q2": {...}, "q4": {...}}, measure, store, scheduler="tcp://10.0.0.1:8786")

Dask does the scheduling; this module skips finished units, stores each result once, and finds the unit that killed its
worker. Needs the extra ``fanout``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..cluster.connect import connect
from ..errors import DataError, Ds4Error, UsageError
from .store import Store
from .store.units import Job

Work = Callable[[Any], dict[str, Any]]
POLL = 0.1
"""Seconds between polls of finished units."""
PATIENCE = 3.0
"""Seconds without any worker after which the user is told."""
ANSWER = 5.0
"""Seconds that a stop waits for workers to report their running units."""
CLOSING = 30.0
"""Seconds to wait for workers to reconnect, and then for them to close."""
KILLED = "its worker died each time it was tried"


@dataclass
class Outcome:
    """Units of a job by state, and their results.

    done       names of units finished by this call
    before     names of units finished earlier
    failed     name -> error
    remaining  names of units not run because of a stop
    results    name -> result, of all finished units
    """

    done: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    remaining: list[str] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


def fan_out(
    job: str,
    units: Mapping[str, Any],
    work: Work,
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int = 1,
    receive: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Outcome:
    """Run the unfinished units of a job on the cluster at ``scheduler`` (see ``cluster``).

    A result may hold runs (a list of arguments of ``Store.add``) under "runs": they are stored once, and replaced by
    their ids. A failed unit is recorded and the others continue; the next call tries it again.

    receive   function (name, result) -> result to store, to take files or other bulk out of it
    progress  called repeatedly with (units done, units in all)
    tell      called with lines for the user
    cancel    once it returns true, units that have not begun are dropped and running ones are waited for

    Raise UsageError or DataError for a scheduler that cannot be used or reached.
    """
    table = Job(store, job)
    table.declare(units)
    known = table.units()
    outcome = Outcome(before=[name for name in units if known[name].done])
    outcome.results = {name: known[name].result or {} for name in outcome.before}
    waiting = {name: arguments for name, arguments in units.items() if not known[name].done}

    def advance() -> None:
        if progress is not None:
            progress(len(units) - len(waiting), len(units))

    advance()
    if not waiting:
        return outcome
    with cluster(scheduler, min(workers, len(waiting))) as client:
        (tell or _silent)(f"dashboard: {client.dashboard_link}")
        for name, error, result in _results(client, work, dict(waiting), advance, tell or _silent, cancel):
            del waiting[name]
            if error is not None:
                outcome.failed[name] = error
                table.fail(name, error)
            else:
                stored = dict(result or {})
                stored = stored if receive is None else receive(name, stored)
                outcome.results[name] = table.finish(name, stored, stored.pop("runs", ()))
                outcome.done.append(name)
            advance()
    outcome.remaining = list(waiting)
    return outcome


@contextmanager
def cluster(scheduler: str | None = None, workers: int = 1) -> Iterator[Any]:
    """Connect to a Dask cluster; raise UsageError or DataError if it cannot be used or reached.

    ``scheduler`` is an address (``tcp://HOST:PORT``, ``tls://...``, any that Dask supports) or a scheduler file. None
    means Dask's own setting (DASK_SCHEDULER_ADDRESS), or else ``workers`` local processes that end with the block.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError("many units need Dask: pip install 'ds4ref[fanout]'") from None
    where = scheduler or dask.config.get("scheduler-address", None)
    if where is None:
        # For good: the cluster sets its level back before its last tasks have failed, with a traceback each.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        # One unit per worker: Dask would blame units in a worker's queue for its death.
        with dask.config.set({"distributed.scheduler.worker-saturation": 1.0}):
            try:
                here = LocalCluster(
                    n_workers=workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
                    memory_limit=0, silence_logs=logging.CRITICAL, preload=DEAF,
                )  # fmt: skip
            except (RuntimeError, OSError) as error:
                raise DataError(f"{workers} worker(s) do not start: {_why(error)}") from None
            try:
                with Client(here) as client:
                    yield client
                    # A cluster that closes while a dead worker is being replaced may never end.
                    with suppress(TimeoutError):
                        client.wait_for_workers(workers, timeout=CLOSING)
            finally:
                with suppress(TimeoutError):
                    here.close(timeout=CLOSING)
        return
    with connect(where) as client:
        yield client


DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Code preloaded into local workers so that they ignore Ctrl-C; this process lets them finish their units."""

Result = tuple[str, str | None, dict[str, Any] | None]


def _results(
    client: Any,
    work: Work,
    units: dict[str, Any],
    idle: Callable[[], None],
    tell: Callable[[str], None],
    cancel: Callable[[], bool] | None,
) -> Iterator[Result]:
    """Yield name, error and result of each unit as it finishes.

    Units whose worker died too often are retried alone: one of them may have shared a worker with the culprit.
    """
    killed: list[str] = []
    stop = _Stop(cancel)
    for name, error, result in _finished(client, work, units, idle, tell, stop):
        if error == KILLED and len(units) > 1:
            killed.append(name)
        else:
            yield name, error, result
    for name in killed:
        yield from _finished(client, work, {name: units[name]}, idle, tell, stop)


class _Stop:
    """The user's request to stop, and whether it was reported."""

    def __init__(self, cancel: Callable[[], bool] | None):
        self.cancel, self.reported = cancel, False

    def __bool__(self) -> bool:
        return self.cancel is not None and self.cancel()


def _finished(
    client: Any, work: Work, units: dict[str, Any], idle: Callable[[], None], tell: Callable[[str], None], stop: _Stop
) -> Iterator[Result]:
    """Yield name, error and result of every unit, except those not begun when ``stop`` became true."""
    from distributed import CancelledError, as_completed

    if stop:
        return
    # Units are measurements: equal arguments do not mean equal results.
    futures = dict(zip(client.map(work, list(units.values()), pure=False), units, strict=True))
    # Results too are gathered in Dask's own loop: that of a worker which died afterwards is waited for without end.
    ready = as_completed(futures, with_results=True, raise_errors=False)
    look = lonely = time.monotonic()
    try:
        while futures:
            for future, result in ready.next_batch(block=False):
                if future not in futures:
                    continue
                if isinstance(result, CancelledError):
                    raise result
                name = futures.pop(future)
                if future.status == "error":
                    yield name, _why(result[1]), None
                else:
                    yield name, None, result
            if stop and not stop.reported:
                stop.reported = True
                begun = _begun(client, [future.key for future in futures])
                unborn = [future for future in futures if future.key not in begun]
                for future in unborn:
                    del futures[future]
                client.cancel(unborn)
                tell(f"stopping: {len(futures)} unit(s) that run are waited for; Ctrl-C again drops them")
            now = time.monotonic()
            if now >= look:
                look = now + 1.0
                lonely = now if client.nthreads() else lonely
                if now - lonely > PATIENCE:
                    tell("the cluster has no worker: waiting for one")
                    lonely = math.inf
            idle()
            time.sleep(POLL)
    except (OSError, CancelledError):
        raise DataError("the Dask scheduler went away; the same command does what is missing") from None
    finally:
        with suppress(OSError, TimeoutError):
            client.cancel(list(futures))


def _begun(client: Any, keys: list[str]) -> set[str]:
    """Return the keys that workers execute; none if the workers do not answer.

    Not ``client.processing()``, which counts what waits in the queue of a worker."""
    try:
        stacks = client.sync(client.scheduler.call_stack, keys=keys, callback_timeout=ANSWER)
    except TimeoutError:
        return set()
    return {key for running in stacks.values() for key in running}


def _why(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return KILLED
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, Ds4Error) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def _silent(line: str) -> None:
    """Drop a line for the user."""
