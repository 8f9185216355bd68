"""The coordinator's model: sessions use it as any other, its layers and caches lie on the stages of a link.

A prefill chunk is given to all stages at once, and ``forward`` returns before it is done: the next chunk begins on the
first stage while this one is on the others. So whatever follows (logits, a snapshot, a rewind) is an instruction that
the stages carry out afterwards, in order.

When a stage is lost, ClusterError is raised once; sequences stay as they were, since their ``history`` is here. The
next use of one connects again and runs its passes again.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..archs.deepseek4 import payload
from ..archs.deepseek4.shape import ModelShape
from ..costs import PREFILL_CHUNK
from ..decode import RANKS, Rows
from ..errors import Cancelled, ClusterError, UsageError
from ..numerics import Numerics
from .cache import ClusterCache, Output
from .history import Base
from .workers import Waiting, Workers

TIMED = 4096
"""Number of the newest decoded tokens whose times are kept."""


class ClusterOps:
    """What a session asks of a backend, for values on the stages: to be brought here."""

    name = "cluster"

    def __init__(self, model: ClusterModel):
        self._model = weakref.ref(model)
        self.prefill_chunk = model.link().facts[0].prefill_chunk or PREFILL_CHUNK
        self._threads = model.link().facts[0].threads

    @property
    def threads(self) -> int:
        """Return the number of threads of each stage; assign to change it."""
        return self._threads

    @threads.setter
    def threads(self, count: int) -> None:
        model = self._model()
        if model is not None:
            model.threads = count
            model.all_stages("set_threads", count)
        self._threads = count

    def host(self, value: Any) -> np.ndarray:
        """Return the array of an ``Output``; arrays as they are."""
        return value.fetch() if isinstance(value, Output) else value

    def upload(self, value: Any) -> Any:
        """Return ``value``: what the coordinator has stays here."""
        return value

    def record(self) -> None:
        """Return None: stages record, each its own part."""


class ClusterDecoder:
    """Passes of single tokens, which the stages replay from recordings."""

    most_rows = 1
    made = 0
    last = None

    def __init__(self, model: ClusterModel, *caches: ClusterCache):
        self.model, self.caches, self.ranks = model, caches, RANKS

    def prepare(self, positions: Iterable[int]) -> int:
        """Let the stages make the recordings that tokens at ``positions`` need; return the most that one made."""
        (cache,) = self.caches
        return max(self.model.wait_all("prepare", cache.key(), tuple(positions)))

    def run(self, *tokens: Sequence[int]) -> list[Rows]:
        """Advance the cache by one token and return its outputs."""
        (cache,), ((token,),) = self.caches, tokens
        begun = time.perf_counter()
        node, serial = cache.node, cache.serial
        try:
            pending = cache.run((token,), True, self.ranks)
            ranked = self.model.wait(pending)
        except ClusterError:
            cache.node, cache.serial = node, serial  # the token is not part of the sequence
            raise
        self.model.times.append((time.perf_counter() - begun, sum(pending.seconds)))
        return [Rows(Output(cache, "streams", 0, 1), Output(cache, "logits", 0, 1), ranked.best, ranked.values)]


class ClusterExperts:
    """How often routed experts were chosen, on all stages."""

    def __init__(self, model: ClusterModel):
        self._model = weakref.ref(model)

    def summary(self, most: int = 16) -> dict[str, Any]:
        """Return what ``archs.experts.ExpertUse.summary`` returns."""
        from ..archs.experts import summary_of

        model = self._model()
        assert model is not None
        return summary_of(np.concatenate(model.wait_all("counts")), most, False)


class ClusterModel:
    """The immutable part of a model on the stages of a link, which ``connect`` makes, and again after a loss."""

    def __init__(
        self,
        shape: ModelShape,
        mode: Numerics,
        connect: Callable[[], Workers],
    ):
        self.shape, self.numerics, self._connect = shape, mode, connect
        self.weights = self.steering = None
        self.closed = False
        self.epoch = 0
        """Number of the connection; what an earlier one's stages had is gone."""
        self.threads: int | None = None
        """Threads of each stage, if they were changed since the first connection."""
        self.times: deque[tuple[float, float]] = deque(maxlen=TIMED)
        """Seconds of each decoded token, in all and computing on the stages."""
        self._link: Workers | None = None
        self._under_way: deque[Waiting] = deque()
        self._passes: deque[Waiting] = deque()
        self.garbage: deque[tuple[int, str, int]] = deque()
        self.numbers: Iterator[int] = itertools.count(1)
        try:
            self.ops: Any = ClusterOps(self)
            self._records = all(facts.records for facts in self.link().facts)
        except BaseException:
            self.close()
            raise
        self.experts = ClusterExperts(self)

    def places(self) -> list[dict[str, Any]]:
        """Return by stage: its worker's name, processor and kernels, its layers ("0-20"), its threads."""
        link = self.link()
        return [
            {
                "worker": name,
                "layers": f"{layers.start}-{layers.stop - 1}",
                "processor": facts.processor,
                "kernels": facts.kernels,
                "threads": self.threads or facts.threads,
            }
            for name, layers, facts in zip(link.names, link.layers, link.facts, strict=True)
        ]

    # --- instructions

    def link(self) -> Workers:
        """Return the stages, connecting first if there is none; raise ClusterError."""
        if self._link is None:
            self._link = self._connect()
            self.epoch += 1
            if self.threads is not None:
                self._under_way += [
                    self._link.send(stage, "set_threads", self.threads) for stage in range(len(self._link.layers))
                ]
        return self._link

    def send(self, stage: int, name: str, *arguments: Any) -> Waiting:
        """Give an instruction to one stage."""
        with self._watched():
            link = self.link()
            self._sweep(link)
            pending = link.send(stage, name, *arguments)
            self._under_way.append(pending)
            return pending

    def all_stages(self, name: str, *arguments: Any) -> list[Waiting]:
        """Give an instruction to every stage."""
        return [self.send(stage, name, *arguments) for stage in range(len(self.link().layers))]

    def wait(self, pending: Waiting) -> Any:
        """Return the result of an instruction; raise what went wrong with it."""
        with self._watched():
            return pending.result()

    def wait_all(self, name: str, *arguments: Any) -> list[Any]:
        """Give an instruction to every stage; return their results in the order of the layers."""
        return [self.wait(pending) for pending in self.all_stages(name, *arguments)]

    def run(
        self, key: int, ids: Sequence[int], recorded: bool, ranks: int, cancel: Callable[[], bool] | None = None
    ) -> Waiting:
        """Give the stages a pass, once as many passes are under way as there are stages. Raise Cancelled before."""
        with self._watched():
            link = self.link()
            while self._passes and (self._passes[0].done() or len(self._passes) > len(link.layers)):
                self._passes[0].result(cancel)
                self._passes.popleft()
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            self._sweep(link)
            self._passes.append(link.run(key, tuple(ids), recorded, ranks))
            return self._passes[-1]

    def _sweep(self, link: Workers) -> None:
        """Drop what is finished or forgotten."""
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()
        gone: dict[str, list[int]] = {"sequences": [], "snapshots": []}
        while self.garbage:
            epoch, kind, number = self.garbage.popleft()
            if epoch == self.epoch:
                gone[kind].append(number)
        if any(gone.values()):
            self._under_way += [link.send(stage, "drop", *gone.values()) for stage in range(len(link.layers))]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Disconnect when a stage is lost or fails: what it holds is not to be trusted."""
        try:
            yield
        except Cancelled:
            raise
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Let go of the stages; the next use connects again."""
        link, self._link = self._link, None
        self.epoch += 1
        self._under_way.clear()
        self._passes.clear()
        if link is not None:
            link.close()

    def close(self) -> None:
        """Let go of the stages and of the cluster."""
        self.disconnect()
        if hasattr(self._connect, "close"):
            self._connect.close()

    # --- a model

    def cache(self, ctx: int, exact: bool = False) -> ClusterCache:
        """Return an empty sequence for ``ctx`` tokens."""
        return ClusterCache(self, ctx)

    def decoder(self, *caches: ClusterCache) -> ClusterDecoder | None:
        """Return a decoder for a sequence, None where the stages cannot record."""
        return ClusterDecoder(self, *caches) if self._records else None

    def last(self, X: Output, count: int) -> Output:
        """Return the streams of the last ``count`` tokens, which stay where they are."""
        return X[-count:]

    def forward(
        self, ids: np.ndarray, cache: ClusterCache, hooks: Any = None, cancel: Callable[[], bool] | None = None
    ) -> Output:
        """Begin a pass of ids (T,) and return its streams, which are fetched when needed."""
        if hooks is not None:
            raise UsageError("intermediates need all layers in one process: not with a cluster")
        cache.run(ids.tolist(), False, RANKS, cancel)
        return Output(cache, "streams", 0, len(ids))

    def logits(self, X: Output, pos0: int = 0, hooks: Any = None) -> np.ndarray:
        """Return the logits (T, V) of streams that ``forward`` returned."""
        return Output(X.cache, "logits", X.start, X.stop, X.serial).fetch()

    def save(self, file: Any, tokens: Sequence[int], logits: np.ndarray, cache: ClusterCache) -> None:
        """Write a session as on one machine, a layer at a time."""
        payload.save(file, self.shape, cache.ctx, tokens, logits, cache)  # type: ignore[arg-type]

    def load(self, file: Any, cache: ClusterCache) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty sequence; its rows stay here, too, to be sent again to a new worker."""
        base = Base(cache.ctx)
        tokens, logits = payload.load(file, self.shape, base)  # type: ignore[arg-type]
        cache.start(base)
        return tokens, logits

    def saved_bytes(self, tokens: int) -> int:
        """Return the size of a saved session of ``tokens`` tokens in bytes."""
        return self.shape.payload_bytes(tokens)
