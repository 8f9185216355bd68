"""The KV cache of one sequence, in four kinds of arrays per layer (docs/explanation/model.md 11.1).

    raw           ring buffer of the attention rows (key and value in one) of the newest positions, which holds the
                  sliding window
    projections   ring buffers of what the compressors compute for the newest tokens, until a compression window (4 or
                  128 tokens) is complete
    comp, index   compressed attention rows and indexer rows, one per complete window, append-only
    means         with a DSpark drafter: ring buffer of the mean of the streams after the layer (``means``)

A ring buffer stores position p at row p % length, so rows never move, and rewinding by a few tokens costs nothing.

Append-only rows live in a ``Store`` that sequences with a common prefix share (``archs.claims``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...costs import prefill_chunk
from ..claims import Claim, Claims, SequenceCache
from .shape import CSA, ModelShape

EMPTY_SCORE = np.float32(-1e30)
"""Score that marks an empty row of a compressor's ring buffer: its softmax weight is zero (docs/explanation/model.md
11.1)."""

REACH = 32
"""Number of tokens by which a sequence can always be rewound without recomputing."""


class Store(Claims):
    """The append-only rows (compressed and indexer rows) of all layers, for ``ctx`` tokens.

    Memory is allocated at once: unwritten pages cost nothing.
    """

    def __init__(self, shape: ModelShape, ctx: int, ops: Any, half: bool):
        super().__init__(shape.row_unit or ctx + 1)
        self.shape, self.ctx, self.ops, self.half = shape, ctx, ops, half
        kind = np.float16 if half else np.float32

        def rows(name: str) -> list[Any]:
            widths = [shape.row_widths(layer).get(name) for layer in range(shape.n_layers)]
            pairs = zip(shape.ratios, widths, strict=True)
            return [None if width is None else ops.array(ctx // ratio + 2, width, dtype=kind) for ratio, width in pairs]

        self.comp, self.index = rows("attn"), rows("indexer")

    def copy(self, pos: int, ctx: int, half: bool) -> Store:
        """Return a separate store for ``ctx`` tokens (float16 rows if ``half``) with the rows of the first ``pos``
        tokens."""
        fresh = type(self)(self.shape, ctx, self.ops, half)
        host, fill = self.ops.host, self.ops.fill
        for mine, theirs in ((self.comp, fresh.comp), (self.index, fresh.index)):
            for ratio, source, target in zip(self.shape.ratios, mine, theirs, strict=True):
                if source is not None and target is not None:
                    fill(target[: pos // ratio], host(source[: pos // ratio]))
        return fresh


class Projections(NamedTuple):
    """What a compressor computed for each of the newest n tokens: values and scores, (n, width) each."""

    kv: np.ndarray
    score: np.ndarray


@dataclass
class LayerCache:
    """The cache arrays of one layer, as the module describes them.

    ``projections`` has one entry per compressor of the layer: "attn", and "indexer" if the layer has an indexer.
    ``means`` is None unless a drafter reads the streams after this layer.
    """

    raw: np.ndarray
    comp: np.ndarray | None
    index: np.ndarray | None
    projections: dict[str, Projections]
    means: np.ndarray | None = None

    def rows(self, kind: str) -> np.ndarray:
        """Return the array of compressed rows that the compressor ``kind`` writes ("attn" or "indexer"); the layer must
        have this compressor."""
        rows = self.comp if kind == "attn" else self.index
        assert rows is not None
        return rows


class CacheSnapshot(NamedTuple):
    """State of a cache at position ``pos``, to which caches of the same model can be reset.

    Append-only rows are not copied: a claim keeps them from being overwritten. The newest rows of every ring buffer are
    copied, oldest first.
    """

    pos: int
    store: Store
    claim: Claim
    raw: list[np.ndarray]
    projections: list[dict[str, Projections]]

    @property
    def own_bytes(self) -> int:
        """Return the bytes of the copies of ring buffers, which belong to this snapshot alone."""
        rings = sum(part.nbytes for kinds in self.projections for ring in kinds.values() for part in ring)
        return rings + sum(rows.nbytes for rows in self.raw)

    @property
    def shared(self) -> tuple[int, int]:
        """Return an identifier of the store, equal for snapshots that share it, and the bytes of its rows up to
        ``pos``."""
        parts = zip(self.store.shape.ratios * 2, [*self.store.comp, *self.store.index], strict=True)
        used = sum(rows[: self.pos // ratio].nbytes for ratio, rows in parts if rows is not None)
        return id(self.store), used


class Cache(SequenceCache):
    """The KV cache of one sequence, for all layers, filled up to position ``pos``.

    half: compressed and indexer rows are stored as float16, which is lossless in modes that round them to float16.
    tapped: layers whose streams a drafter reads.
    """

    store_kind = Store
    _store: Store

    def __init__(self, shape: ModelShape, ctx: int, ops: Any, half: bool = False, tapped: Collection[int] = ()):
        self.shape, self.ops = shape, ops
        # snapshots and files have no means: they are known from _tapped on
        self._means = {layer: ops.array(shape.window + 2 * REACH, shape.dim) for layer in tapped}
        self._tapped = 0
        # ring buffers hold positions from _since on, as far as they are long enough; _newest: the end of those written
        self._since = 0
        self._newest = 0
        # long enough for a whole chunk: recordings depend on the length, and a longer prompt would make the rings grow
        rows = max(4 * shape.window, shape.window + prefill_chunk(ops))
        self._raw = [ops.array(rows, shape.head_dim) for _ in shape.ratios]
        self._rings = [self._new_rings(layer) for layer in range(shape.n_layers)]
        super().__init__(self.store_kind(shape, ctx, ops, half))

    def _new_rings(self, layer: int) -> dict[str, Projections]:
        rings = {}
        for name, width in self.shape.ring_widths(layer).items():
            size = self.shape.state_rows(layer) + REACH, width
            rings[name] = Projections(self.ops.array(*size), self.ops.array(*size))
            self._empty(rings[name])
        return rings

    def _empty(self, ring: Projections) -> None:
        """Empty a compressor's ring buffers: values 0, scores ``EMPTY_SCORE``."""
        self.ops.fill(ring.kv, 0)
        self.ops.fill(ring.score, EMPTY_SCORE)

    def _lay_out(self) -> None:
        comp, index = self._store.comp, self._store.index
        self.layers = [
            LayerCache(raw, comp[source], index[source], rings, self._means.get(layer))
            for layer, (raw, rings) in enumerate(zip(self._raw, self._rings, strict=True))
            for source in [self.shape.rows_from(layer)]
        ]

    def buffers(self) -> list[np.ndarray]:
        """Return the cache arrays that a pass reads and writes, layer by layer."""
        arrays = []
        for layer in self.layers:
            arrays += [
                layer.raw,
                layer.comp,
                layer.index,
                *(part for ring in layer.projections.values() for part in ring),
                layer.means,
            ]
        return [array for array in arrays if array is not None]

    @property
    def index_rows(self) -> int:
        """Return the number of indexer rows (compressed positions) allocated per layer that has an indexer."""
        return self._store.ctx // CSA + 2

    # --- adding tokens

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``; raise ContextError if they exceed the context."""
        super().reserve(count)
        if self.shape.window + count > len(self._raw[0]):
            rows = [self._newest_rows(ring, self.shape.window) for ring in self._raw]
            self._raw = [self.ops.array(self.shape.window + count, self.shape.head_dim) for _ in rows]
            for ring, some in zip(self._raw, rows, strict=True):
                self._place(ring, some)
            self._since = max(self._since, self.pos)
            self._moved()

    def advance(self, count: int) -> None:
        """Move ``pos`` forward by ``count`` tokens, after their rows have been written."""
        super().advance(count)
        self._newest = max(self._newest, self.pos)

    def note(self, pos: int, ids: Sequence[int] | np.ndarray) -> Any:
        """Note the ids of tokens from position ``pos`` on, in families whose later passes depend on them."""

    # --- ring buffers

    def _newest_rows(self, ring: np.ndarray, count: int) -> np.ndarray:
        """Return a copy of a ring buffer's rows of the last ``count`` positions (or fewer, if ``pos`` is smaller),
        oldest first."""
        count = min(count, self.pos)
        start = (self.pos - count) % max(1, len(ring))
        first = min(count, len(ring) - start)
        return np.concatenate([self.ops.host(ring[start : start + first]), self.ops.host(ring[: count - first])])

    def _place(self, ring: np.ndarray, rows: np.ndarray) -> None:
        """Write rows (n, width) of the last n positions before ``pos`` into a ring buffer."""
        start = (self.pos - len(rows)) % len(ring)
        first = min(len(rows), len(ring) - start)
        self.ops.fill(ring[start : start + first], rows[:first])
        self.ops.fill(ring[: len(rows) - first], rows[first:])

    def raw_rows(self, layer: int) -> np.ndarray:
        """Return a copy of a layer's uncompressed rows that later tokens can still attend to, oldest first."""
        return self._newest_rows(self._raw[layer], self.shape.window)

    def compressed(self, layer: int, kind: str) -> np.ndarray:
        """Return the rows that a layer's compressor has written so far, as a host array; ``kind``: the compressor,
        "attn" or "indexer"."""
        return self.ops.host(self.layers[layer].rows(kind)[: self.pos // self.shape.ratios[layer]])

    def waiting(self, layer: int, kind: str) -> Projections:
        """Return copies of a compressor's projections that later rows still need, oldest first.

        These are the projections of the incomplete window and, where windows overlap (ratio 4), of the window before.
        """
        ring = self._rings[layer][kind]
        count = self.pos % self.shape.ratios[layer] + self.shape.overlap(layer)
        return Projections(*(self._newest_rows(part, count) for part in ring))

    def means(self, start: int) -> tuple[int, np.ndarray]:
        """Return the first position, ``start`` or later, from which all means up to ``pos`` are known, and the means:
        float32 (n, layers, D), of each position and each layer that a drafter reads."""
        first = max(start, self._tapped, *(self._newest - len(ring) for ring in self._means.values()))
        first = min(first, self.pos)
        return first, np.stack([self._newest_rows(ring, self.pos - first) for ring in self._means.values()], 1)

    # --- going back to an earlier state

    def rewindable(self, pos: int) -> bool:
        """Return whether everything that a token at ``pos`` reads is still cached."""
        if not self._since <= pos <= self.pos:
            return False
        oldest = [(pos - self.shape.window + 1, len(self._raw[0]))]
        for layer, rings in enumerate(self._rings):
            ratio = self.shape.ratios[layer]
            for ring in rings.values():
                oldest.append((pos // ratio * ratio - self.shape.overlap(layer), len(ring.kv)))
        return all(position + length >= self._newest for position, length in oldest)

    def snapshot(self) -> CacheSnapshot:
        """Return a snapshot of the cache at ``pos``."""
        layers = range(self.shape.n_layers)
        rings = [{kind: self.waiting(layer, kind) for kind in self._rings[layer]} for layer in layers]
        claim = self._store.claim(self.pos)
        return CacheSnapshot(self.pos, self._store, claim, [self.raw_rows(layer) for layer in layers], rings)

    def reset(self, snapshot: CacheSnapshot) -> None:
        """Restore a snapshot of any cache of the same model; the snapshot stays usable.

        Raise ContextError, with nothing changed, if the snapshot does not fit.
        """
        self._reset(snapshot.store, snapshot.pos)
        self.restart(snapshot.pos)
        for layer, (raw, rings) in enumerate(zip(snapshot.raw, snapshot.projections, strict=True)):
            self.put(layer, raw, rings)

    def restart(self, pos: int) -> None:
        """Set the position and empty the ring buffers, keeping append-only rows; ``put`` refills the ring buffers."""
        self.pos = self._since = self._newest = self._tapped = pos
        self._claim.pos = max(self._claim.pos, pos)
        for rings in self._rings:
            for ring in rings.values():
                self._empty(ring)

    def put(self, layer: int, raw: np.ndarray, projections: dict[str, Projections]) -> None:
        """Write the attention rows and projections of the last positions before ``pos`` into a layer's ring buffers."""
        self._place(self._raw[layer], raw)
        for kind, rows in projections.items():
            for ring, values in zip(self._rings[layer][kind], rows, strict=True):
                self._place(ring, values)

    def put_compressed(self, layer: int, kind: str, rows: np.ndarray) -> None:
        """Write ``rows`` (n, width) as the first n rows of a layer's compressor ``kind``, "attn" or "indexer"."""
        self.ops.fill(self.layers[layer].rows(kind)[: len(rows)], rows)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the ring buffers and of the append-only rows written so far."""
        total = sum(ring.nbytes for ring in (*self._raw, *self._means.values()))
        for layer, rings in enumerate(self._rings):
            total += sum(part.nbytes for ring in rings.values() for part in ring)
            total += sum(self.compressed(layer, kind).nbytes for kind in self.shape.row_widths(layer))
        return total
