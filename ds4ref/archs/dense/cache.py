"""The KV cache of one sequence: keys and values of every token, per layer, append-only.

The row of a position holds that token's keys (or values) of all KV heads. All rows are kept, so the cache can be
rewound to any position. They are in a ``Store`` that sequences with a common prefix share (``archs.claims``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..claims import Claim, Claims, SequenceCache
from .shape import DenseShape


@dataclass(frozen=True)
class LayerRows:
    """Keys and values of one layer, (ctx, KV heads * head_dim) each."""

    keys: np.ndarray
    values: np.ndarray

    def heads(self, shared: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views of cached keys and values, (ctx, shared, head_dim) each; ``shared``: number of KV heads."""
        keys, values = (rows.reshape(len(rows), shared, -1) for rows in (self.keys, self.values))
        return keys, values


class Store(Claims):
    """Keys and values of all layers for ``ctx`` tokens. Memory is allocated at once: unwritten pages cost nothing."""

    def __init__(self, shape: DenseShape, ctx: int, ops: Any, half: bool):
        super().__init__()
        self.shape, self.ctx, self.ops, self.half = shape, ctx, ops, half
        kind = np.float16 if half else np.float32

        def rows() -> Any:
            return ops.array(ctx, shape.kv_width, dtype=kind)

        self.layers = [LayerRows(rows(), rows()) for _ in range(shape.n_layers)]

    def copy(self, pos: int, ctx: int, half: bool) -> Store:
        """Return a separate store for ``ctx`` tokens (float16 rows if ``half``) with the rows of the first ``pos``
        tokens."""
        fresh = Store(self.shape, ctx, self.ops, half)
        for mine, theirs in zip(self.layers, fresh.layers, strict=True):
            for source, target in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                self.ops.fill(target[:pos], self.ops.host(source[:pos]))
        return fresh


class CacheSnapshot(NamedTuple):
    """State of a cache at position ``pos``, to which caches of the same model can be reset. Rows are not copied: a
    claim keeps them from being overwritten."""

    pos: int
    store: Store
    claim: Claim

    @property
    def own_bytes(self) -> int:
        """Return 0: a snapshot has no bytes of its own, as all rows are in the store."""
        return 0

    @property
    def shared(self) -> tuple[int, int]:
        """Return an identifier of the store, equal for snapshots that share it, and the bytes of its rows up to
        ``pos``."""
        return id(self.store), self.store.shape.kv_bytes(self.pos, 2 if self.store.half else 4)


class Cache(SequenceCache):
    """The KV cache of one sequence, for all layers, filled up to position ``pos``; ``half``: rows are float16."""

    _store: Store

    def __init__(self, shape: DenseShape, ctx: int, ops: Any, half: bool = False):
        self.shape, self.ops = shape, ops
        super().__init__(Store(shape, ctx, ops, half))

    def _lay_out(self) -> None:
        self.layers = self._store.layers

    def buffers(self) -> list[np.ndarray]:
        """Return the cache arrays that a pass reads and writes, layer by layer."""
        return [part for layer in self.layers for part in (layer.keys, layer.values)]

    def rewindable(self, pos: int) -> bool:
        """Return whether ``pos`` is at or before the cache's position, which suffices because every row is kept."""
        return 0 <= pos <= self.pos

    def snapshot(self) -> CacheSnapshot:
        """Return a snapshot of the cache at ``pos``."""
        return CacheSnapshot(self.pos, self._store, self._store.claim(self.pos))

    def reset(self, snapshot: CacheSnapshot) -> None:
        """Restore a snapshot of any cache of the same model; the snapshot stays usable.

        Raise ContextError, with nothing changed, if the snapshot does not fit.
        """
        self._reset(snapshot.store, snapshot.pos)

    def rows(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a layer's keys and values so far, (pos, kv_width) each, as host arrays."""
        some = self.layers[layer]
        keys, values = (self.ops.host(part[: self.pos]) for part in (some.keys, some.values))
        return keys, values

    def put(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Write keys and values (n, kv_width) as a layer's first n rows; call ``advance`` afterwards to set ``pos``."""
        some = self.layers[layer]
        for target, part in ((some.keys, keys), (some.values, values)):
            self.ops.fill(target[: len(part)], part)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the rows written so far."""
        return self.shape.kv_bytes(self.pos, 2 if self._store.half else 4)
