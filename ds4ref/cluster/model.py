"""The coordinator's model: sessions use it like any other, but its layers and caches are on the stages of a cluster.

A prefill chunk is sent to all stages at once, and ``forward`` returns before it is computed, so that the first stage
can begin the next chunk while the others compute this one. Whatever follows (logits, a snapshot, a rewind) is also an
instruction to the stages, which carry out instructions in order.

When a stage is lost, ClusterError is raised once. Sequences remain valid, because the coordinator has their
``history``: the next use of a sequence connects again and runs its passes again.
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
from ..archs.deepseek4.dimensions import Dimensions
from ..costs import PREFILL_CHUNK
from ..decode import RANKS, Rows
from ..errors import Cancelled, ClusterError, UsageError
from ..numerics import Numerics
from .cache import ClusterCache, Output
from .history import Base
from .workers import Waiting, Workers

TIMED = 4096
"""Number of decoded tokens, the newest ones, whose times are kept."""


class ClusterOps:
    """Takes the place of a backend for sessions on a cluster, where values are on the stages."""

    name = "cluster"

    def __init__(self, model: ClusterModel):
        self._model = weakref.ref(model)
        self.prefill_chunk = model.link().facts[0].prefill_chunk or PREFILL_CHUNK
        self._threads = model.link().facts[0].threads

    @property
    def threads(self) -> int:
        """Return the number of threads of each stage; assign a number to change it."""
        return self._threads

    @threads.setter
    def threads(self, count: int) -> None:
        model = self._model()
        if model is not None:
            model.threads = count
            model.all_stages("set_threads", count)
        self._threads = count

    def host(self, value: Any) -> np.ndarray:
        """Return ``value`` as an array on the coordinator; an ``Output`` is fetched from its stage."""
        return value.fetch() if isinstance(value, Output) else value

    def upload(self, value: Any) -> Any:
        """Return ``value`` unchanged, because values of the coordinator are not copied to a device."""
        return value

    def record(self) -> None:
        """Return None, because not the coordinator but each stage records its operations."""


class ClusterDecoder:
    """Decodes single tokens, whose operations the stages have recorded and replay."""

    most_rows = 1
    made = 0
    last = None

    def __init__(self, model: ClusterModel, *caches: ClusterCache):
        self.model, self.caches, self.ranks = model, caches, RANKS

    def prepare(self, positions: Iterable[int]) -> int:
        """Make the stages record operations for tokens at ``positions``; return the most recordings that one made."""
        (cache,) = self.caches
        return max(self.model.wait_all("prepare", cache.key(), tuple(positions)))

    def run(self, *tokens: Sequence[int]) -> list[Rows]:
        """Compute one token, append it to the sequence, and return its outputs and the most likely next tokens."""
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
    """Counts how often each routed expert was chosen, over all stages."""

    def __init__(self, model: ClusterModel):
        self._model = weakref.ref(model)

    def summary(self, most: int = 16) -> dict[str, Any]:
        """Return a summary of the counts in the form of ``archs.experts.ExpertUse.summary``."""
        from ..archs.experts import summary_of

        model = self._model()
        assert model is not None
        return summary_of(np.concatenate(model.wait_all("counts")), most, False)


class ClusterModel:
    """The coordinator's model of a model on a cluster.

    shape     dimensions of the model
    mode      how values are rounded
    connect   connects to the workers and loads the stages; it is called again after a stage was lost
    """

    def __init__(
        self,
        shape: Dimensions,
        mode: Numerics,
        connect: Callable[[], Workers],
    ):
        self.shape, self.numerics, self._connect = shape, mode, connect
        self.weights = self.steering = None
        self.closed = False
        self.epoch = 0
        """Number of the present connection; what the stages of an earlier one held is lost."""
        self.threads: int | None = None
        """Number of threads of each stage, None unless it was changed since the first connection."""
        self.times: deque[tuple[float, float]] = deque(maxlen=TIMED)
        """Of each decoded token: (seconds in total, seconds that the stages computed)."""
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
        """Return a dict for each stage: name, processor and kernels of its worker, its layers ("0-20"), its threads."""
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
        """Return the connection to the stages, connecting first if there is none; raise ClusterError if that fails."""
        if self._link is None:
            self._link = self._connect()
            self.layers = self._link.layers
            self.epoch += 1
            if self.threads is not None:
                self._under_way += [
                    self._link.send(stage, "set_threads", self.threads) for stage in range(len(self._link.layers))
                ]
        return self._link

    def send(self, stage: int, name: str, *arguments: Any) -> Waiting:
        """Send an instruction, the method ``name`` of ``Stage`` and its arguments, to one stage; do not wait for it."""
        with self._watched():
            link = self.link()
            self._sweep(link)
            pending = link.send(stage, name, *arguments)
            self._under_way.append(pending)
            return pending

    def all_stages(self, name: str, *arguments: Any) -> list[Waiting]:
        """Send an instruction to every stage; do not wait for it."""
        return [self.send(stage, name, *arguments) for stage in range(len(self.link().layers))]

    def wait(self, pending: Waiting) -> Any:
        """Wait for an instruction and return its result; raise the error with which it failed."""
        with self._watched():
            return pending.result()

    def wait_all(self, name: str, *arguments: Any) -> list[Any]:
        """Send an instruction to every stage, wait for all, and return their results in the order of the layers."""
        return [self.wait(pending) for pending in self.all_stages(name, *arguments)]

    def run(
        self, key: int, ids: Sequence[int], recorded: bool, ranks: int, cancel: Callable[[], bool] | None = None
    ) -> Waiting:
        """Start a forward pass on all stages (``Stage.run``) and return without waiting for its result.

        If there are already more unfinished passes than stages, wait first. Raise Cancelled if ``cancel()`` becomes
        true before the pass is started.
        """
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
        """Forget instructions that are done, and make the stages drop sequences and snapshots no longer in use."""
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
        """Disconnect if the block raises an error other than Cancelled, because caches on the stages may be invalid."""
        try:
            yield
        except Cancelled:
            raise
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close the connection to the stages; the next use of the model connects again."""
        link, self._link = self._link, None
        self.epoch += 1
        self._under_way.clear()
        self._passes.clear()
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close the connections to the stages and to the cluster."""
        self.disconnect()
        if hasattr(self._connect, "close"):
            self._connect.close()

    # --- a model

    def cache(self, ctx: int, exact: bool = False) -> ClusterCache:
        """Return a new, empty sequence for at most ``ctx`` tokens; ``exact`` has no effect on a cluster."""
        return ClusterCache(self, ctx)

    def decoder(self, *caches: ClusterCache) -> ClusterDecoder | None:
        """Return a decoder for a sequence, None if the stages cannot record operations."""
        return ClusterDecoder(self, *caches) if self._records else None

    def last(self, X: Output, count: int) -> Output:
        """Return the streams of the last ``count`` tokens, without fetching them from the stage."""
        return X[-count:]

    def forward(
        self, ids: np.ndarray, cache: ClusterCache, hooks: Any = None, cancel: Callable[[], bool] | None = None
    ) -> Output:
        """Start a pass of the tokens ``ids`` (T,) and return its final streams, which are fetched only when needed.

        ``hooks`` must be None, because hooks need all layers in one process.
        """
        if hooks is not None:
            raise UsageError("intermediates need all layers in one process: not with a cluster")
        cache.run(ids.tolist(), False, RANKS, cancel)
        return Output(cache, "streams", 0, len(ids))

    def logits(self, X: Output, pos0: int = 0, hooks: Any = None) -> np.ndarray:
        """Fetch the logits (T, vocab) for streams ``X`` that ``forward`` returned."""
        return Output(X.cache, "logits", X.start, X.stop, X.serial).fetch()

    def save(self, file: Any, tokens: Sequence[int], logits: np.ndarray, cache: ClusterCache) -> None:
        """Write a session to a file in the format used on one machine, fetching one layer's rows at a time."""
        payload.save(file, self.shape, cache.ctx, tokens, logits, cache)  # type: ignore[arg-type]

    def load(self, file: Any, cache: ClusterCache) -> tuple[list[int], np.ndarray]:
        """Read a saved session into the empty sequence ``cache``; return its tokens and its last logits.

        The coordinator keeps the cache rows, so that they can be sent again if a worker is replaced.
        """
        base = Base(cache.ctx)
        base.tokens, logits = payload.load(file, self.shape, base)  # type: ignore[arg-type]
        cache.start(base)
        return list(base.tokens), logits

    def saved_bytes(self, tokens: int) -> int:
        """Return the size of a saved session of ``tokens`` tokens in bytes."""
        return self.shape.payload_bytes(tokens)
