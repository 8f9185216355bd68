"""The coordinator's side of the actors: sends them instructions, and detects workers that die or hang."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, NamedTuple

from ..engine_options import PATIENCE
from ..errors import BackendError, Cancelled, ClusterError
from .actor import Answer, StageActor, call
from .stage import Facts, StageSpec

LOOK = 0.25
"""Seconds after which, while waiting for a stage, all stages are checked and asked for a sign of life."""


class Place(NamedTuple):
    """A worker (name and address) and the layers that it has."""

    name: str
    address: str
    layers: range

    def __str__(self) -> str:
        shown = self.address if self.name == self.address else f"{self.name} at {self.address}"
        return f"worker {shown} (layers {self.layers.start}-{self.layers.stop - 1})"


class Waiting:
    """An instruction that was sent to some stages and whose result is not yet known."""

    def __init__(self, workers: Workers, futures: dict[int, Future[Any]]):
        self._workers, self._futures = workers, futures
        self.seconds: list[float] = []
        """Seconds that each stage computed; filled by ``result``."""

    def done(self) -> bool:
        """Return whether all stages have answered, so that ``result`` does not wait."""
        return all(future.done() for future in self._futures.values())

    def result(self, cancel: Callable[[], bool] | None = None) -> Any:
        """Wait for the result and return it; of several stages, that of the last one.

        Raise ClusterError if a stage dies or hangs, BackendError if it fails, Cancelled once ``cancel()`` is true.
        """
        answers = self._workers.answers(self._futures, cancel)
        self.seconds = [answer.seconds for answer in answers]
        return answers[-1].value


class Workers:
    """Stages on the workers of a Dask client, each of which sends its streams to the next.

    ``patience`` is the number of seconds without a sign of life after which a worker is considered lost.

    Instructions are sent at once and carried out by a stage in the order in which they were sent; only
    ``Waiting.result`` waits for them.
    """

    def __init__(self, client: Any, places: Sequence[Place], patience: float = PATIENCE):
        self.places, self.patience, self._client = places, patience, client
        self.layers = [place.layers for place in places]
        self.names = [place.name for place in places]
        self.facts: Sequence[Facts] = []
        self._numbers = [itertools.count() for _ in places]
        self._passes = itertools.count(1)
        self._asked: dict[int, tuple[float, Future[Any]]] = {}
        self._actors = [
            client.submit(StageActor, actor=True, workers=[place.address], pure=False, retries=0) for place in places
        ]
        try:
            self._await_actors()
            for stage in range(len(places)):
                following = None
                if stage + 1 < len(places):
                    following = places[stage + 1].address, self._actors[stage + 1].key
                self.answers({stage: self._call(stage, "link", following)}, None)
        except BaseException:
            self.close()
            raise

    def _await_actors(self) -> None:
        deadline = time.monotonic() + self.patience
        for place, actor in zip(self.places, self._actors, strict=True):
            while not actor.done():
                if time.monotonic() > deadline:
                    raise ClusterError(f"{place} has not answered for {self.patience:g} s")
                time.sleep(0.01)
            if actor.status != "finished":
                raise ClusterError(f"{place} cannot take its layers: {actor.status}")

    def load(self, spec: StageSpec) -> None:
        """Make each worker map the model file ``spec.path`` and load its layers; wait until all have done so."""
        loading = {
            stage: self._do(stage, 0, "load", tuple(spec._replace(layers=place.layers)))
            for stage, place in enumerate(self.places)
        }
        self.facts = [Facts(*answer.value) for answer in self.answers(loading, None)]

    # --- instructions

    def send(self, stage: int, name: str, *arguments: Any) -> Waiting:
        """Send an instruction, the method ``name`` of ``Stage`` with its arguments, to one stage."""
        return Waiting(self, {stage: self._do(stage, 0, name, arguments)})

    def run(self, *arguments: Any) -> Waiting:
        """Send a forward pass to all stages; ``arguments`` are those of ``Stage.run``."""
        number = next(self._passes)
        futures = {stage: self._do(stage, number, "run", arguments) for stage in range(len(self.places))}
        return Waiting(self, futures)

    def _do(self, stage: int, passes: int, name: str, arguments: tuple[Any, ...]) -> Future[Any]:
        return self._call(stage, "do", next(self._numbers[stage]), passes, name, arguments)

    def _call(self, stage: int, function: str, *arguments: Any) -> Future[Any]:
        calling = call(self._client.rpc, self.places[stage].address, self._actors[stage].key, function, *arguments)
        return asyncio.run_coroutine_threadsafe(calling, self._client.loop.asyncio_loop)

    def answers(self, futures: dict[int, Future[Any]], cancel: Callable[[], bool] | None) -> list[Answer]:
        """Wait for the answers of stages, whose ``futures`` are given by stage, and return them.

        Errors are those of ``Waiting.result``.
        """
        while waiting := [future for future in futures.values() if not future.done()]:
            with suppress(TimeoutError, CancelledError):
                waiting[-1].exception(LOOK)
            for stage, future in futures.items():
                if future.done():
                    self._answer(stage, future)
            if not waiting[-1].done():
                if cancel is not None and cancel():
                    raise Cancelled("stopped")
                self._look_after()
        return [self._answer(stage, future) for stage, future in futures.items()]

    def _answer(self, stage: int, future: Future[Any]) -> Answer:
        place = self.places[stage]
        try:
            answer = Answer(*future.result())
        except (OSError, KeyError, TimeoutError, CancelledError, asyncio.CancelledError) as error:
            raise ClusterError(f"{place} is gone: {type(error).__name__}") from None
        if answer.unreached:
            raise ClusterError(f"{self.places[stage + 1]} is gone: worker {place.name} cannot reach it")
        if answer.error is not None:
            raise BackendError(f"{place}: {answer.error}")
        return answer

    def _look_after(self) -> None:
        """Ask all stages for a sign of life; raise ClusterError if one has not answered for ``patience`` seconds."""
        now = time.monotonic()
        for stage, place in enumerate(self.places):
            since, future = self._asked.get(stage, (now, None))
            if future is not None and future.done():
                if future.cancelled() or future.exception() is not None:
                    self._answer(stage, future)
                future = None
            if future is None:
                self._asked[stage] = now, self._call(stage, "alive")
            elif now - since > self.patience:
                raise ClusterError(f"{place} has not answered for {self.patience:g} s")

    def close(self) -> None:
        """Close and release all actors, including those that do not answer."""
        for stage, actor in enumerate(self._actors):
            with suppress(Exception):
                self._call(stage, "close").add_done_callback(_ignored)
            actor.release()


def _ignored(future: Future[Any]) -> None:
    """Retrieve the error of a call whose result is not needed, so that it is not logged as unhandled."""
    if not future.cancelled():
        future.exception()
