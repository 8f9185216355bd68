"""The caches of one timeline: keys and values of every token, per layer, append-only.

Row ``position`` holds that token's keys (or values) of all shared heads, so any earlier position can be gone back to.
Rows live in a ``Store`` that timelines with a common past share (``archs.claims``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..claims import Claim, Claims, Timeline
from .shape import DenseShape


@dataclass(frozen=True)
class LayerRows:
    """Keys and values of one layer, (ctx, shared heads * head_dim) each."""

    keys: np.ndarray
    values: np.ndarray

    def heads(self, shared: int) -> tuple[np.ndarray, np.ndarray]:
        """The same as (ctx, shared heads, head_dim)."""
        keys, values = (rows.reshape(len(rows), shared, -1) for rows in (self.keys, self.values))
        return keys, values


class Store(Claims):
    """Rows of all layers with room for ``ctx`` tokens. Memory is asked for once: untouched pages cost nothing."""

    def __init__(self, shape: DenseShape, ctx: int, ops: Any, half: bool):
        super().__init__()
        self.shape, self.ctx, self.ops, self.half = shape, ctx, ops, half
        kind = np.float16 if half else np.float32

        def rows() -> Any:
            return ops.array(ctx, shape.kv_width, dtype=kind)

        self.layers = [LayerRows(rows(), rows()) for _ in range(shape.n_layers)]

    def copy(self, pos: int, ctx: int, half: bool) -> Store:
        """A store of one's own with the rows of the first ``pos`` tokens."""
        fresh = Store(self.shape, ctx, self.ops, half)
        for mine, theirs in zip(self.layers, fresh.layers, strict=True):
            for source, target in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                self.ops.fill(target[:pos], self.ops.host(source[:pos]))
        return fresh


class CacheSnapshot(NamedTuple):
    """A frontier that a cache of the same model can be reset to: nothing but a claim on shared rows."""

    pos: int
    store: Store
    claim: Claim

    @property
    def own_bytes(self) -> int:
        """Bytes that nobody shares."""
        return 0

    @property
    def shared(self) -> tuple[int, int]:
        """Which rows it counts on (a number that snapshots of one store have in common), and their bytes."""
        return id(self.store), self.store.shape.kv_bytes(self.pos, 2 if self.store.half else 4)


class Cache(Timeline):
    """The caches of all layers at position ``pos``. half: rows are stored as float16."""

    _store: Store

    def __init__(self, shape: DenseShape, ctx: int, ops: Any, half: bool = False):
        self.shape, self.ops = shape, ops
        super().__init__(Store(shape, ctx, ops, half))

    def _lay_out(self) -> None:
        self.layers = self._store.layers

    def rewindable(self, pos: int) -> bool:
        """Always, back to any position: every row is kept."""
        return 0 <= pos <= self.pos

    def snapshot(self) -> CacheSnapshot:
        """Remember this frontier."""
        return CacheSnapshot(self.pos, self._store, self._store.claim(self.pos))

    def reset(self, snapshot: CacheSnapshot) -> None:
        """To a frontier taken from any cache of the same model; the snapshot stays usable. ContextError, with nothing
        changed, if it does not fit."""
        self._reset(snapshot.store, snapshot.pos)

    def rows(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values so far, (pos, kv_width) each, as the host sees them."""
        some = self.layers[layer]
        keys, values = (self.ops.host(part[: self.pos]) for part in (some.keys, some.values))
        return keys, values

    def put(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """The first rows of a layer, for a cache that is then ``advance``d."""
        some = self.layers[layer]
        for target, part in ((some.keys, keys), (some.values, values)):
            self.ops.fill(target[: len(part)], part)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows so far take."""
        return self.shape.kv_bytes(self.pos, 2 if self._store.half else 4)
