"""A sequence whose caches lie on the stages: what sessions use of it, its snapshots and its outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..archs.deepseek4.cache import Projections
from ..decode import RANKS
from ..errors import ContextError, SessionError
from .history import Base, Node, Pass, back, chain, passed
from .workers import Waiting


class Handle:
    """Something that the stages keep under a number, until this object goes."""

    def __init__(self, model: Any, kind: str):
        self.epoch, self.number = model.epoch, next(model.numbers)
        weakref.finalize(self, model.garbage.append, (self.epoch, kind, self.number)).atexit = False


class Output:
    """Streams or logits of rows [start, stop) of a sequence's last pass, which lie on the last stage."""

    def __init__(self, cache: ClusterCache, kind: str, start: int, stop: int, serial: int | None = None):
        self.cache, self.kind, self.start, self.stop = cache, kind, start, stop
        self.serial = cache.serial if serial is None else serial

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows: slice) -> Output:
        start, stop, _ = rows.indices(len(self))
        return Output(self.cache, self.kind, self.start + start, self.start + max(start, stop), self.serial)

    def fetch(self) -> np.ndarray:
        """Return the array; raise SessionError once the sequence has had another pass."""
        return self.cache.output(self)


class ClusterCache:
    """A sequence whose caches lie on the stages: its history, and under which key and since which connection they have
    it."""

    moves = 0

    def __init__(self, model: Any, ctx: int):
        self.model, self.ctx = model, ctx
        self.node: Node = Base(ctx)
        self.serial: int | None = None
        """Number of the pass whose outputs the last stage has."""
        self._handle: Handle | None = None
        self._layer: tuple[int, Any] | None = None

    @property
    def pos(self) -> int:
        """Return the number of tokens."""
        return self.node.end

    @property
    def _current(self) -> bool:
        return self._handle is not None and self._handle.epoch == self.model.epoch

    def key(self, cancel: Callable[[], bool] | None = None) -> int:
        """Return the key under which the stages have this sequence, after making it there if they have not.

        Raise Cancelled between two passes: then they have not, and forget what was made.
        """
        link = self.model.link()
        if not self._current:
            self._handle = None
            handle = Handle(self.model, "sequences")
            base, passes = chain(self.node)
            self.model.all_stages("open", handle.number, self.ctx)
            if base.end:
                self.model.all_stages("restart", handle.number, base.end)
                for stage, layers in enumerate(link.layers):
                    for layer in layers:
                        self.model.send(stage, "put", handle.number, layer - layers.start, *base.layers[layer])
            for one in passes:
                self.model.run(handle.number, one.ids, one.recorded, RANKS, cancel)
                if one.kept < len(one.ids):
                    self.model.all_stages("rewind", handle.number, one.end)
            self.serial = passes[-1].serial if passes else None
            self._handle = handle
        assert self._handle is not None
        return self._handle.number

    def run(self, ids: Sequence[int], recorded: bool, ranks: int, cancel: Callable[[], bool] | None = None) -> Waiting:
        """Give the stages a pass of ``ids``."""
        if self.pos + len(ids) > self.ctx:
            raise ContextError(f"{self.pos + len(ids)} tokens do not fit the context of {self.ctx}")
        pending = self.model.run(self.key(cancel), tuple(int(token) for token in ids), recorded, ranks, cancel)
        self._take(passed(self.node, ids, recorded))
        return pending

    def _take(self, node: Node) -> None:
        self.node, self._layer = node, None
        self.serial = node.serial if isinstance(node, Pass) else None

    def output(self, wanted: Output) -> np.ndarray:
        """Return the array of an output."""
        key = self.key()
        if wanted.serial != self.serial:
            raise SessionError("the outputs of an earlier pass are gone")
        last = len(self.model.link().layers) - 1
        return self.model.wait(self.model.send(last, wanted.kind, key, wanted.start, wanted.stop))

    # --- what sessions ask of a cache

    def reserve(self, count: int) -> None:
        """Return: stages make room."""

    def rewindable(self, pos: int) -> bool:
        """Return whether every stage can go back to ``pos``."""
        if not chain(self.node)[0].end <= pos <= self.pos:
            return False
        return all(self.model.wait_all("rewindable", self.key(), pos))

    def rewind(self, pos: int) -> None:
        """Set the position back to ``pos``, which must be rewindable."""
        serial = self.serial
        if self._current:
            self.model.all_stages("rewind", self.key(), pos)
        self._take(back(self.node, pos))
        self.serial = serial  # the last pass's outputs stay

    def snapshot(self) -> ClusterSnapshot:
        """Return a snapshot: the history, and what the stages keep for it, nothing where this sequence is lost."""
        if not self._current:  # making it again here could not be cancelled
            return ClusterSnapshot(self.model, self.node, None)
        key = self.key()
        handle = Handle(self.model, "snapshots")
        self.model.all_stages("snapshot", key, handle.number)
        return ClusterSnapshot(self.model, self.node, handle)

    def reset(self, snapshot: ClusterSnapshot) -> None:
        """Restore a snapshot, also one that the stages have lost; raise ContextError if it does not fit."""
        if snapshot.node is self.node:  # where a pass was given up before it began
            return
        if snapshot.node.end > self.ctx:
            raise ContextError(f"a snapshot of {snapshot.node.end} tokens does not fit the context of {self.ctx}")
        if self._current and snapshot.handle is not None and snapshot.handle.epoch == self.model.epoch:
            self.model.all_stages("reset", self.key(), snapshot.handle.number)
        else:
            self._handle = None
        self._take(snapshot.node)
        self.serial = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the caches of all stages."""
        return sum(self.model.wait_all("nbytes", self.key()))

    # --- what a payload asks of one

    def start(self, base: Base) -> None:
        """Continue from a base in place of an empty sequence."""
        self.node, self._handle, self.serial, self._layer = base, None, None, None

    def _rows(self, layer: int) -> Any:
        if self._layer is None or self._layer[0] != layer:
            layers = self.model.link().layers
            stage = next(number for number, some in enumerate(layers) if layer in some)
            rows = self.model.wait(self.model.send(stage, "rows", self.key(), layer - layers[stage].start))
            self._layer = layer, rows
        return self._layer[1]

    def raw_rows(self, layer: int) -> np.ndarray:
        """Return a layer's uncompressed rows that later tokens can still attend to, oldest first."""
        return self._rows(layer)[0]

    def compressed(self, layer: int, kind: str) -> np.ndarray:
        """Return a layer's compressed rows so far."""
        return self._rows(layer)[1][kind][0]

    def waiting(self, layer: int, kind: str) -> Projections:
        """Return the projections of a layer's open windows."""
        return Projections(*self._rows(layer)[1][kind][1])


class ClusterSnapshot:
    """A snapshot of a ``ClusterCache``."""

    def __init__(self, model: Any, node: Node, handle: Handle | None):
        self.node, self.handle, self._shape = node, handle, model.shape

    @property
    def own_bytes(self) -> int:
        """Return the bytes on all stages that no other snapshot shares."""
        return self._shape.payload_bytes(self.node.end) - self._compressed_bytes

    @property
    def shared(self) -> tuple[int, int]:
        """Return an identity of the compressed rows that other snapshots may share, and their bytes."""
        return id(chain(self.node)[0]), self._compressed_bytes

    @property
    def _compressed_bytes(self) -> int:
        shape = self._shape
        rows = (self.node.end // r * shape.row_values(layer) for layer, r in enumerate(shape.ratios) if r)
        return 4 * sum(rows)
