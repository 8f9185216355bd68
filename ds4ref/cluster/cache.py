"""A sequence whose caches are on the stages, its snapshots and its outputs, as sessions use them."""

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
    """The number under which all stages keep a sequence or a snapshot, until this object is deleted.

    ``kind`` is "sequences" or "snapshots", ``epoch`` the number of the connection at which the stages got it.
    """

    def __init__(self, model: Any, kind: str):
        self.epoch, self.number = model.epoch, next(model.numbers)
        weakref.finalize(self, model.garbage.append, (self.epoch, kind, self.number)).atexit = False


class Output:
    """Streams or logits (``kind``) of the tokens [start, stop) of a sequence's last pass, as on the last stage.

    Only ``fetch`` copies them to the coordinator. ``serial`` is the number of the pass.
    """

    def __init__(self, cache: ClusterCache, kind: str, start: int, stop: int, serial: int | None = None):
        self.cache, self.kind, self.start, self.stop = cache, kind, start, stop
        self.serial = cache.serial if serial is None else serial

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows: slice) -> Output:
        start, stop, _ = rows.indices(len(self))
        return Output(self.cache, self.kind, self.start + start, self.start + max(start, stop), self.serial)

    def fetch(self) -> np.ndarray:
        """Return the values as an array; raise SessionError if the sequence has had another pass since."""
        return self.cache.output(self)


class ClusterCache:
    """A sequence whose caches are on the stages.

    The coordinator has its history (``node``), from which lost caches can be computed again, and the key under which
    the stages have it, if they do.
    """

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
        """Return the number of tokens of the sequence."""
        return self.node.end

    @property
    def _current(self) -> bool:
        return self._handle is not None and self._handle.epoch == self.model.epoch

    def key(self, cancel: Callable[[], bool] | None = None) -> int:
        """Return the key under which the stages have this sequence.

        If they do not have it, because it is new or they were lost, its passes are run again first. Raise Cancelled if
        ``cancel()`` becomes true between two of these; the stages then drop what was computed.
        """
        link = self.model.link()
        if not self._current:
            self._handle = None
            handle = Handle(self.model, "sequences")
            base, passes = chain(self.node)
            self.model.all_stages("open", handle.number, self.ctx)
            if base.end:
                self.model.all_stages("restart", handle.number, tuple(base.tokens))
                for stage, layers in enumerate(link.layers):
                    for place, layer in enumerate(self.model.shape.cached(layers)):
                        self.model.send(stage, "put", handle.number, place, *base.layers[layer])
            for one in passes:
                self.model.run(handle.number, one.ids, one.recorded, RANKS, cancel)
                if one.kept < len(one.ids):
                    self.model.all_stages("rewind", handle.number, one.end)
            self.serial = passes[-1].serial if passes else None
            self._handle = handle
        assert self._handle is not None
        return self._handle.number

    def run(self, ids: Sequence[int], recorded: bool, ranks: int, cancel: Callable[[], bool] | None = None) -> Waiting:
        """Start a forward pass of the tokens ``ids`` on the stages, without waiting for its result.

        recorded   replay it from a recording of operations (single tokens), if the stages have one
        ranks      number of most likely next tokens to return
        """
        if self.pos + len(ids) > self.ctx:
            raise ContextError(f"{self.pos + len(ids)} tokens do not fit the context of {self.ctx}")
        pending = self.model.run(self.key(cancel), tuple(int(token) for token in ids), recorded, ranks, cancel)
        self._take(passed(self.node, ids, recorded))
        return pending

    def _take(self, node: Node) -> None:
        self.node, self._layer = node, None
        self.serial = node.serial if isinstance(node, Pass) else None

    def output(self, wanted: Output) -> np.ndarray:
        """Fetch an output from the last stage; raise SessionError if it is not one of the newest pass."""
        key = self.key()
        if wanted.serial != self.serial:
            raise SessionError("the outputs of an earlier pass are gone")
        last = len(self.model.link().layers) - 1
        return self.model.wait(self.model.send(last, wanted.kind, key, wanted.start, wanted.stop))

    # --- what sessions ask of a cache

    def reserve(self, count: int) -> None:
        """Do nothing, because the stages reserve memory themselves."""

    def rewindable(self, pos: int) -> bool:
        """Return whether every stage can go back to its state after ``pos`` tokens."""
        if not chain(self.node)[0].end <= pos <= self.pos:
            return False
        return all(self.model.wait_all("rewindable", self.key(), pos))

    def rewind(self, pos: int) -> None:
        """Go back to the state after ``pos`` tokens, for which ``rewindable`` must be true."""
        serial = self.serial
        if self._current:
            self.model.all_stages("rewind", self.key(), pos)
        self._take(back(self.node, pos))
        self.serial = serial  # the outputs of the last pass remain available

    def snapshot(self) -> ClusterSnapshot:
        """Return a snapshot: the history, and the snapshots on the stages, unless the stages have lost the sequence."""
        if not self._current:  # the passes are not run again here, where they could not be cancelled
            return ClusterSnapshot(self.model, self.node, None)
        key = self.key()
        handle = Handle(self.model, "snapshots")
        self.model.all_stages("snapshot", key, handle.number)
        return ClusterSnapshot(self.model, self.node, handle)

    def reset(self, snapshot: ClusterSnapshot) -> None:
        """Restore a snapshot, even if the stages have lost it; raise ContextError if it does not fit the context."""
        if snapshot.node is self.node:  # nothing has changed since, as after a pass that was cancelled before it began
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
        """Return the size of this sequence's caches on all stages, in bytes."""
        return sum(self.model.wait_all("nbytes", self.key()))

    # --- what a payload asks of one

    def start(self, base: Base) -> None:
        """Begin with the rows of a saved session (``base``), in place of an empty sequence."""
        self.node, self._handle, self.serial, self._layer = base, None, None, None

    def _rows(self, layer: int) -> Any:
        if self._layer is None or self._layer[0] != layer:
            layers = self.model.link().layers
            stage = next(number for number, some in enumerate(layers) if layer in some)
            place = self.model.shape.cached(layers[stage]).index(layer)
            rows = self.model.wait(self.model.send(stage, "rows", self.key(), place))
            self._layer = layer, rows
        return self._layer[1]

    def raw_rows(self, layer: int) -> np.ndarray:
        """Return a layer's uncompressed cache rows that later tokens can still attend to, oldest first."""
        return self._rows(layer)[0]

    def compressed(self, layer: int, kind: str) -> np.ndarray:
        """Return a layer's compressed cache rows so far; ``kind`` names the compressor."""
        return self._rows(layer)[1][kind][0]

    def waiting(self, layer: int, kind: str) -> Projections:
        """Return the projections of a layer's newest tokens, which are not yet compressed into a row."""
        return Projections(*self._rows(layer)[1][kind][1])


class ClusterSnapshot:
    """A snapshot of a sequence: its history, and the key of the stages' snapshots if they have any."""

    def __init__(self, model: Any, node: Node, handle: Handle | None):
        self.node, self.handle, self._shape, self._parts = node, handle, model.shape, model.layers

    @property
    def own_bytes(self) -> int:
        """Return the bytes on all stages that are not shared with other snapshots."""
        return self._shape.payload_bytes(self.node.end) - self._rows_bytes(range(self._shape.n_layers))

    @property
    def shared(self) -> tuple[int, int]:
        """Return (id, bytes) of the compressed cache rows, which snapshots of the same sequence share."""
        return id(chain(self.node)[0]), sum(self._rows_bytes(self._shape.cached(part)) for part in self._parts)

    def _rows_bytes(self, layers: Sequence[int]) -> int:
        shape, ratios = self._shape, self._shape.ratios
        return 4 * sum(self.node.end // ratios[i] * shape.row_values(i) for i in layers if ratios[i])
