"""Execute a plan: threads read, decode and quantize pieces of the tensors, which are written in order.

A piece is some weight rows of one matrix. It is in memory as float32 only while it is processed, and pieces are so
small that all those in progress fit into the memory budget; tensors that are only copied are handled in pieces as well.
The result depends neither on the size of the pieces nor on the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ds4ref.kernels.cpu.library import KernelError
from ds4ref.kernels.cpu.quantize import BLOCKED, prepare, quantize
from ds4ref.kernels.formats import FORMATS

from ...errors import BackendError, DataError, ModelFileError
from ..source import TensorSource
from .imatrix import Imatrix
from .part import PartFile
from .plan import Item, Plan

MEMORY = 1 << 30
"""Default working memory of a run in bytes, not counting the program and mapped files."""

BYTES_A_WEIGHT = 24
"""Estimated bytes of memory for each weight in progress: as float32, while decoding, and as stored before and after."""

MOST_WEIGHTS = 4 << 20
"""Maximum number of weights in a piece: enough to keep a thread busy for a second."""

Progress = Callable[[int, int], None]


class Piece(NamedTuple):
    """Weight rows ``first`` .. ``last`` - 1 of the planned tensor ``item``, all of the same matrix if it is a stack."""

    item: Item
    first: int
    last: int


def run(
    plan: Plan,
    source: TensorSource,
    out: PartFile,
    imatrix: Imatrix | None = None,
    threads: int = 1,
    memory: int = MEMORY,
    progress: Progress | None = None,
    cancelled: Callable[[], None] | None = None,
) -> None:
    """Write the tensors of ``plan`` that ``out`` does not have yet.

    source     file that the tensors are read from
    imatrix    importance of the weights, or None
    threads    number of threads
    memory     working memory in bytes
    progress   called with (bytes written so far, bytes of all tensors) after each piece
    cancelled  called between pieces; may raise to stop

    Raise DataError for weights that cannot be stored, ModelFileError for a source that cannot be read.
    """
    if any(not item.copied and item.spec.fmt in BLOCKED for item in plan.items):
        try:
            prepare()
        except KernelError as error:
            raise BackendError(str(error)) from None
    most = piece_weights(plan, threads, memory)
    done = sum(item.spec.nbytes for item in plan.items[: out.tensor])
    if out.tensor < len(plan.items):
        item = plan.items[out.tensor]
        done += out.row * (item.spec.nbytes // item.spec.rows)
    pieces = _pieces(plan, most, out.tensor, out.row)
    stored = Rows(source)
    waiting: deque[tuple[Piece, Future[np.ndarray]]] = deque()

    def write() -> None:
        nonlocal done
        piece, made = waiting.popleft()
        data = made.result()
        out.write(piece.last - piece.first, data)
        done += data.nbytes
        if progress is not None:
            progress(done, plan.nbytes)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for piece in pieces:
                waiting.append((piece, pool.submit(make, stored, piece, imatrix)))
                while len(waiting) >= _in_flight(threads):
                    write()
                    if cancelled is not None:
                        cancelled()
            while waiting:
                write()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_flight(threads: int) -> int:
    return threads + 2


def piece_weights(plan: Plan, threads: int, memory: int) -> int:
    """Return the largest number of weights in a piece such that all pieces in progress fit into ``memory`` bytes. (A
    piece has at least one row, even if that is larger.)"""
    return min(memory // (BYTES_A_WEIGHT * _in_flight(threads)), MOST_WEIGHTS)


def _pieces(plan: Plan, most: int, tensor: int, row: int) -> Iterator[Piece]:
    """Yield the pieces from row ``row`` of tensor number ``tensor`` on, each of at most ``most`` weights or one row."""
    for number, item in enumerate(plan.items[tensor:], tensor):
        step = max(1, most // item.spec.dims[0])
        height = item.spec.dims[1] if item.experts else item.spec.rows
        at = row if number == tensor else 0
        while at < item.spec.rows:
            last = min(at + step, (at // height + 1) * height)
            yield Piece(item, at, last)
            at = last


def make(source: Rows, piece: Piece, imatrix: Imatrix | None) -> np.ndarray:
    """Return the bytes to write for a piece, quantized or copied, uint8 (rows, row_bytes).

    Raise DataError if a weight cannot be stored.
    """
    item, cols = piece.item, piece.item.spec.dims[0]
    raw = source.rows(item, piece.first, piece.last)
    if item.copied:
        return raw
    if item.spec.fmt == "I32":
        return _whole_numbers(item, raw)
    weights = item.source.fmt.dequantize(raw)
    expert = piece.first // item.spec.dims[1] if item.experts else None
    importance = None
    if imatrix is not None and item.weighed:
        importance = imatrix.importance(item.spec.name, cols, max(1, item.experts), expert)
    if not np.isfinite(weights).all():
        row = piece.first + int(np.argmin(np.isfinite(weights).all(axis=1)))
        raise DataError(f"{item.spec.name}: row {row} holds a weight that is not finite")
    quantized = quantize(item.spec.fmt, weights, importance)
    if FORMATS[item.spec.fmt].first_non_finite(quantized.reshape(-1)) is not None:
        raise DataError(f"{item.spec.name}: holds weights too large for {item.spec.fmt}")
    return quantized


class Rows:
    """Reads weight rows of a source's tensors, as stored.

    A published model is converted matrix by matrix as it is read; the last few converted matrices are cached, since
    consecutive pieces are usually of the same one.
    """

    CACHED = 4

    def __init__(self, source: TensorSource):
        self.source = source
        self._lock = threading.Lock()
        self._matrices: dict[tuple[str, int], np.ndarray] = {}

    def rows(self, item: Item, first: int, last: int) -> np.ndarray:
        """Return rows ``first`` .. ``last`` - 1 of a tensor, all of one matrix, uint8 (rows, row_bytes).

        Raise ModelFileError if the source cannot be read.
        """
        name, size = item.source.name, item.source.fmt.row_bytes(item.spec.dims[0])
        if not hasattr(self.source, "piece"):
            return self._whole(self.source.raw(name), name, size, item.spec.rows)[first:last]
        height = item.spec.rows // self.source.pieces(name)  # type: ignore[attr-defined]
        matrix = self._whole(self._piece(name, first // height), name, size, height)
        at = first // height * height
        return matrix[first - at : last - at]

    def _whole(self, raw: np.ndarray, name: str, row_bytes: int, rows: int) -> np.ndarray:
        if raw.nbytes != row_bytes * rows:
            raise ModelFileError(self.source.path, f"{name} has {raw.nbytes} bytes, not {row_bytes * rows}")
        return raw.reshape(rows, row_bytes)

    def _piece(self, name: str, index: int) -> np.ndarray:
        """Return matrix ``index`` of a tensor from the cache, or convert it; other threads wait meanwhile."""
        with self._lock:
            if (name, index) not in self._matrices:
                self._matrices[name, index] = self.source.piece(name, index)  # type: ignore[attr-defined]
                if len(self._matrices) > self.CACHED:
                    del self._matrices[next(iter(self._matrices))]
            return self._matrices[name, index]


def _whole_numbers(item: Item, raw: np.ndarray) -> np.ndarray:
    kinds = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
    values = np.ascontiguousarray(raw).view(kinds[item.source.fmt.name])
    if values.size and (values.min() < -(2**31) or values.max() >= 2**31):
        raise DataError(f"{item.spec.name}: holds an integer beyond 32 bits")
    return values.astype("<i4").view(np.uint8)
