"""The fetch step of a mat-vec (``matvec``): which chunk a warp loads next, and the asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import copy16, divide, element, remainder
from ..driver.shim import cuda
from .layouts import Layout, bits_of, chunk_bytes, pitch
from .units import UNITS

I32, I64 = np.int32, np.int64
SECOND = np.int32(8)
"""Flag that is added to the number of rows in ``Chunk.ends`` if they belong to the second of two matrices."""


class Work(NamedTuple):
    """How pieces of work (a group of rows, times the input of a pair) are divided among warps: each warp takes
    ``rounds`` pieces, the first ``extra`` warps one more; ``2^split_bits`` warps share a piece."""

    pairs: int
    split_bits: int
    rounds: int
    extra: int


class Turns(NamedTuple):
    """A warp's share of the work: turns ``low`` to ``high`` (over slots and chunks) of every ``stride``-th piece.

    ``firsts`` pieces belong to the first matrix, rows have ``units`` units of 32 weights, and chunks are copied to
    shared memory between words ``base`` and ``end``.
    """

    low: Any
    high: Any
    stride: Any
    firsts: Any
    chunks: Any
    units: Any
    base: Any
    end: Any


class Cursor(NamedTuple):
    """The next chunk to fetch: its piece, turn, slot and number, the byte where it starts, the word it is copied to;
    and for its rows: how many there are (as in ``Chunk.ends``), the index of the first one's result, and the first unit
    of their input."""

    item: Any
    turn: Any
    slot: Any
    chunk: Any
    start: Any
    target: Any
    rows: Any
    result: Any
    unit: Any


class Chunk(NamedTuple):
    """A chunk in shared memory: the unit of the input that it begins with, its number of units, the number of bytes
    before each row's data (four bits per row), how many rows end with this chunk, and the index of the first one's
    result."""

    unit: Any
    room: Any
    skews: Any
    ends: Any
    result: Any


def fetcher(fmt: str, layout: Layout, whole: bool) -> Callable[..., Any]:
    """Make the device function that starts to copy the chunk at a cursor to shared memory, and returns the next cursor
    and the chunk."""
    unit, at_once, row_bits = UNITS[fmt], layout.rows, bits_of(layout.rows)
    chunk_units, size_of_chunk, row_words = 32 * layout.passes, chunk_bytes(unit, layout), pitch(unit, layout)
    pieces, stage_words = size_of_chunk // 16, at_once * row_words
    per_lane = -(-size_of_chunk // 16 // 32) if whole else -(-(size_of_chunk + 14) // 16) // 32 + 1

    @cuda.jit(device=True)
    def begin_rows(at, lane, matrices, routing, pairs, turns):
        """Return ``at``, at the begin of a slot or piece, with the fields of its rows filled in."""
        number, height = at.item, I32(matrices.rows)
        rows = I32(0)
        if at.item >= turns.firsts:
            number, height = I32(at.item - turns.firsts), I32(matrices.rows2)
            rows = SECOND
        pair = I32(0)
        if pairs > 1:
            per_pair = I32((height + at_once - 1) >> row_bits)
            pair = divide(number, per_pair)
            number = I32(number - pair * per_pair)
        row, vector = I32(number << row_bits), I32(pair * routing.slots + at.slot)
        rows_here = I32(min(at_once, height - row))  # type: ignore[arg-type]
        matrix_id = I32(0)
        if routing.experts > 0:
            matrix_id = I32(element(routing.ids, vector))
            if matrix_id < 0 or matrix_id >= routing.experts:
                routing.error[0] = routing.failure
                matrix_id = I32(0)
        elif routing.groups > 1:
            matrix_id = remainder(pair, routing.groups)
        if routing.share > 1:
            vector = divide(vector, routing.share)
        start = (I64(matrix_id) * height + row) * matrices.row_bytes + at.chunk * size_of_chunk
        if whole:
            start += 16 * lane
        result, first_unit = I32(pair * height + row), I32(vector * turns.units)
        return Cursor(
            at.item, at.turn, at.slot, at.chunk, start, at.target, I32(rows + rows_here), result, first_unit
        )  # fmt: skip

    @cuda.jit(device=True)
    def fetch(words, at, lane, matrices, routing, work, turns):
        if at.chunk == 0 or at.turn == turns.low:
            at = begin_rows(at, lane, matrices, routing, work.pairs, turns)
        source = matrices.raw2 if at.rows >= SECOND else matrices.raw
        skews, last = I32(0), I32((at.rows & 7) - 1)  # rows past the last one repeat it
        for r in range(at_once):
            below = I32(min(r, last) * matrices.row_bytes)
            begin, target = at.start + below, I32(at.target + r * row_words + 4 * lane)
            if whole:
                for k in range(per_lane):
                    if 32 * k + 31 < pieces or lane < pieces - 32 * k:
                        copy16(words, target + 128 * k, source, begin + 512 * k)
            else:
                skew = I32(begin & 15)
                skews = I32(skews | skew << (4 * r))
                size = I32(min(size_of_chunk, matrices.row_bytes - at.chunk * size_of_chunk))
                count = I32((skew + size + 15) >> 4)
                for k in range(per_lane):
                    if lane + 32 * k < count:
                        copy16(words, target + 128 * k, source, begin - skew + 16 * lane + 512 * k)
        before = I32(at.chunk * chunk_units)
        unit_0, room = I32(at.unit + before), I32(turns.units - before)
        target = I32(at.target + stage_words)
        target = turns.base if target == turns.end else target
        item, turn, slot, chunk, ends = at.item, I32(at.turn + 1), at.slot, I32(at.chunk + 1), I32(0)
        if chunk == turns.chunks:
            chunk = I32(0)
            slot = I32(slot + 1)
        if turn == turns.high and work.split_bits == 0:
            ends = at.rows
            item = I32(item + turns.stride)
            turn, slot, chunk = I32(0), I32(0), I32(0)
        later = Cursor(
            item, turn, slot, chunk, at.start + size_of_chunk, target, at.rows, at.result, at.unit
        )  # fmt: skip
        return later, Chunk(unit_0, room, skews, ends, at.result)

    return fetch
