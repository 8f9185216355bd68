"""The caches of one timeline, per layer (engine.md 5.1).

    raw      the last window rows and the chunk under way, oldest first
    comp     compressed attention rows, append-only      (ratio 4 and 128)
    index    indexer rows, append-only                   (ratio 4)
    states   projections of windows not yet closed       (compressors)

Append-only rows are shared with snapshots: a snapshot keeps a row count, and ``Rows`` copies only when a timeline
would overwrite rows that a living snapshot still counts on. Everything else is small and copied.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ..shape import ModelShape

EMPTY_SCORE = np.float32(-1e30)
"""Score of a compressor slot that holds no token yet (engine.md 5.1)."""


class _Mark:
    """A snapshot's claim on the first ``count`` rows of a buffer."""

    __slots__ = ("__weakref__", "count")

    def __init__(self, count: int):
        self.count = count


class Rows:
    """Growing (n, width) rows, float32 or float16.

    Memory is asked for once, in full: untouched pages cost nothing, and rows that never move need no copies and no new
    token program. Only a timeline that would overwrite rows of a living snapshot goes on in a copy.
    """

    def __init__(self, width: int, capacity: int, dtype: DTypeLike = np.float32):
        self.width, self.capacity = width, capacity
        self._buffer = np.empty((capacity, width), dtype)
        self._count = 0
        self._marks: weakref.WeakSet[_Mark] = weakref.WeakSet()
        self.moves = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> np.ndarray:
        """The rows so far (n, width), a view."""
        return self._buffer[: self._count]

    @property
    def nbytes(self) -> int:
        """Bytes the rows so far take."""
        return self.rows.nbytes

    @property
    def buffer(self) -> np.ndarray:
        """All rows there is room for; it stays in place until ``moves`` changes."""
        return self._buffer

    def append(self, rows: np.ndarray) -> None:
        """Add rows (n, width); OverflowError beyond the capacity the context size gives."""
        self.reserve(len(rows))
        self._buffer[self._count : self._count + len(rows)] = rows
        self.commit(len(rows))

    def reserve(self, count: int) -> None:
        """Make room for ``count`` rows, which the caller may then write behind the last one."""
        end = self._count + count
        if end > self.capacity:
            raise OverflowError(f"{end} compressed rows, room for {self.capacity}")
        if any(mark.count > self._count for mark in self._marks):
            fresh = np.empty_like(self._buffer)
            fresh[: self._count] = self.rows
            self._buffer, self._marks = fresh, weakref.WeakSet()
            self.moves += 1

    def commit(self, count: int) -> None:
        """``count`` rows were written behind the last one."""
        self._count += count

    def mark(self) -> tuple[np.ndarray, _Mark, weakref.WeakSet[_Mark]]:
        """A claim on the current rows that ``reset`` can return to."""
        mark = _Mark(self._count)
        self._marks.add(mark)
        return self._buffer, mark, self._marks

    def reset(self, saved: tuple[np.ndarray, _Mark, weakref.WeakSet[_Mark]]) -> None:
        """Back to a claim made by ``mark``."""
        self.moves += self._buffer is not saved[0]
        self._buffer, mark, self._marks = saved
        self._count = mark.count


class RawRows:
    """The sliding window: rows of the last ``window`` positions stay, older ones go."""

    def __init__(self, width: int, window: int):
        self.width, self.keep = width, window
        self._buffer = np.empty((4 * window, width), np.float32)
        self._start = self._end = 0
        self.pos = 0
        self.moves = 0

    @property
    def buffer(self) -> np.ndarray:
        """All rows there is memory for; it stays in place until ``moves`` changes."""
        return self._buffer

    @property
    def next_slot(self) -> int:
        """Where in ``buffer`` the next row goes, after ``reserve``; older rows lie before it in order."""
        return self._end

    def append(self, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Add rows (T, width); returns all rows that the new tokens may see and the position of the first of them."""
        self.reserve(len(rows))
        self._buffer[self._end : self._end + len(rows)] = rows
        self.commit(len(rows))
        return self._buffer[self._start : self._end], self.pos - (self._end - self._start)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` rows behind the window."""
        kept = min(self._end - self._start, self.keep)
        self._start = self._end - kept
        if self._end + count > len(self._buffer):
            old = self._buffer[self._start : self._end].copy()
            if kept + count > len(self._buffer):
                self._buffer = np.empty((kept + count, self.width), np.float32)
                self.moves += 1
            self._buffer[:kept] = old
            self._start, self._end = 0, kept

    def commit(self, count: int) -> None:
        """``count`` rows were written behind the window."""
        self._end += count
        self.pos += count

    def last(self, count: int) -> np.ndarray:
        """The newest ``count`` rows (at most window), oldest first."""
        return self._buffer[self._end - count : self._end]

    def live(self) -> np.ndarray:
        """The newest min(pos, window) rows."""
        return self.last(min(self.pos, self.keep))

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._buffer.nbytes

    def load(self, rows: np.ndarray, pos: int) -> None:
        """Replace everything by ``rows``, the last ones before position ``pos``."""
        if len(rows) > len(self._buffer):
            self._buffer = np.empty((len(rows), self.width), np.float32)
            self.moves += 1
        self._buffer[: len(rows)] = rows
        self._start, self._end, self.pos = 0, len(rows), pos


class CompressorState:
    """Projections (values and scores) of the window under way and, for ratio 4, of the previous one.

    Laid out as ds4 does: ratio 4 keeps 8 rows, 0-3 the previous window and 4-7 the current; ratio 128 keeps 128.
    Slots without a token hold value 0 and score -1e30.
    """

    def __init__(self, ratio: int, comp_width: int):
        self.ratio, self.overlap = ratio, ratio == 4
        n = 2 * ratio if self.overlap else ratio
        self.kv = np.zeros((n, comp_width), np.float32)
        self.score = np.full((n, comp_width), EMPTY_SCORE, np.float32)

    @property
    def first(self) -> int:
        """Slot of the first token of the window under way."""
        return self.ratio if self.overlap else 0

    def pending(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first ``count`` rows of the window under way, (count, cw) each; copies."""
        at = slice(self.first, self.first + count)
        return self.kv[at].copy(), self.score[at].copy()

    def previous(self) -> tuple[np.ndarray, np.ndarray]:
        """The previous window's rows (ratio, cw) each (ratio 4 only); copies."""
        return self.kv[: self.ratio].copy(), self.score[: self.ratio].copy()

    def keep_window(self, kv: np.ndarray, score: np.ndarray) -> None:
        """A window closed: ratio 4 keeps it as the previous one."""
        if self.overlap:
            self.kv[: self.ratio], self.score[: self.ratio] = kv, score

    def keep_pending(self, kv: np.ndarray, score: np.ndarray) -> None:
        """The rows (n < ratio) of the window now under way; the other slots become empty."""
        first, n = self.first, len(kv)
        self.kv[first : first + n], self.score[first : first + n] = kv, score
        self.kv[first + n :], self.score[first + n :] = 0, EMPTY_SCORE


class LayerCache:
    """All that one layer remembers."""

    def __init__(self, shape: ModelShape, layer: int, ctx: int, dtype: DTypeLike = np.float32):
        ratio = shape.ratios[layer]
        self.raw = RawRows(shape.head_dim, shape.window)
        self.comp = Rows(shape.head_dim, ctx // ratio + 2 if ratio else 0, dtype)
        self.index = Rows(shape.index_dim, ctx // ratio + 2 if ratio == 4 else 0, dtype)
        self.comp_state = CompressorState(ratio, shape.comp_width(layer)) if ratio else None
        self.index_state = CompressorState(ratio, 2 * shape.index_dim) if ratio == 4 else None

    @property
    def moves(self) -> int:
        """Grows whenever a buffer of this layer has moved."""
        return self.raw.moves + self.comp.moves + self.index.moves

    def states(self) -> list[CompressorState]:
        """The compressor states there are: attention, then indexer."""
        return [s for s in (self.comp_state, self.index_state) if s is not None]


@dataclass
class CacheSnapshot:
    """A frontier of a Cache that it can be reset to; holds references to append-only rows and copies of the rest."""

    pos: int
    layers: list[tuple]


class Cache:
    """The caches of all layers at position ``pos``.

    half: compressed and indexer rows are stored as float16, which loses nothing in modes that round them to it.
    """

    def __init__(self, shape: ModelShape, ctx: int, half: bool = False):
        dtype = np.float16 if half else np.float32
        self.shape, self.ctx, self.pos = shape, ctx, 0
        self.layers = [LayerCache(shape, layer, ctx, dtype) for layer in range(shape.n_layers)]

    def snapshot(self) -> CacheSnapshot:
        """Remember this frontier."""
        layers = [
            (
                layer.raw.live().copy(),
                layer.comp.mark(),
                layer.index.mark(),
                [(s.kv.copy(), s.score.copy()) for s in layer.states()],
            )
            for layer in self.layers
        ]
        return CacheSnapshot(self.pos, layers)

    def reset(self, snapshot: CacheSnapshot) -> None:
        """Back to a frontier taken from this cache; the snapshot stays usable."""
        self.pos = snapshot.pos
        for layer, (raw, comp, index, states) in zip(self.layers, snapshot.layers, strict=True):
            layer.raw.load(raw, snapshot.pos)
            layer.comp.reset(comp)
            layer.index.reset(index)
            for state, (kv, score) in zip(layer.states(), states, strict=True):
                state.kv[:], state.score[:] = kv, score

    @property
    def nbytes(self) -> int:
        """Bytes that rows and states take."""
        return sum(
            layer.raw.nbytes
            + layer.comp.nbytes
            + layer.index.nbytes
            + sum(s.kv.nbytes + s.score.nbytes for s in layer.states())
            for layer in self.layers
        )
