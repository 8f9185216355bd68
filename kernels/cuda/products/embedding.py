"""Embedding look-up: rows of a weight matrix as floats; block formats are decoded by ``units``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import FORMATS
from ...formats.matrix import Matrix
from ..driver.intrinsics import bits_to_float, permute_bytes, sync_warp
from ..driver.shim import cuda, i32
from .dots import BIASED, BYTE_BIAS, EXPONENT_23
from .layouts import table_words
from .plain import VALUE_BYTES, _reader
from .units import UNITS

F32, I32 = np.float32, np.int32
THREADS = 256
SELECT = I32(0x7540)


@cache
def _plain(fmt: str) -> Any:
    _, one = _reader(fmt)
    size = VALUE_BYTES[fmt]

    @cuda.jit
    def look_up(out, error, ids, raw, count, rows, n, failure):
        """Look up one value per thread."""
        i = cuda.grid(1)
        token = i // n
        if token < count:
            row = ids[token]
            if row < 0 or row >= rows:
                error[0] = I32(failure)
                row = I32(0)
            out[i] = one(raw, (np.int64(row) * n + (i - token * n)) * size)

    return look_up


@cache
def _blocks(fmt: str) -> Any:
    unit = UNITS[fmt]
    decode, column, per_block, block_bytes = unit.decode, unit.column, unit.per_block, unit.block_bytes
    minima, halves = unit.minima, unit.halves
    table = np.zeros(1, np.int32) if unit.table is None else unit.table
    words_of_table = table_words(unit)

    @cuda.jit(device=True)
    def store_four(out, at, q, f):
        """Store four weights f q of a word q."""
        biased = I32(q ^ BYTE_BIAS)
        for k in range(4):
            out[at + k] = f * (bits_to_float(permute_bytes(biased, EXPONENT_23, SELECT + k)) - BIASED)

    @cuda.jit
    def look_up(out, error, ids, raw, rows, row_bytes, n, failure):
        """Decode 32 units (of 32 weights) of one row per warp."""
        lane = cuda.threadIdx.x
        words = cuda.shared.array(0, i32)
        if words_of_table > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(lane, words_of_table, 32):
                words[i] = looked_up[i >> 5]
            sync_warp()
        token = cuda.blockIdx.y
        row = ids[token]
        if row < 0 or row >= rows:
            error[0] = I32(failure)
            row = I32(0)
        number = cuda.blockIdx.x * 32 + lane
        inside = number * 32 < n
        j, low, m = number & (per_block - 1), F32(0), I32(0)
        target = np.int64(token) * n + 32 * (number - j)
        if inside:
            at = np.int64(row) * row_bytes + number // per_block * block_bytes
            q0, q1, q2, q3, q4, q5, q6, q7, d, s, t, low, m = decode(raw, at & ~3, at & 3, j, words)
            f = d * F32(s)
            rest = d * F32(t) if halves else f
            store_four(out, target + column(j, 0), q0, f)
            store_four(out, target + column(j, 1), q1, f)
            store_four(out, target + column(j, 2), q2, f)
            store_four(out, target + column(j, 3), q3, f)
            store_four(out, target + column(j, 4), q4, rest)
            store_four(out, target + column(j, 5), q5, rest)
            store_four(out, target + column(j, 6), q6, rest)
            store_four(out, target + column(j, 7), q7, rest)
        if minima:
            # in some formats the minima a lane decodes belong to weights that other lanes decode
            sync_warp()
            for k in range(32 if inside else 0):
                out[target + 32 * j + k] -= low * F32(m >> (k >> 4 << 3) & 255)

    return look_up


def look_up(
    stream: Any, out: Any, error: Any, ids: Any, table: Matrix, count: int, failure: int
) -> None:  # fmt: skip
    """Look up rows ids (count,) of the table -> out (count, n); set ``error[0]`` to ``failure`` if an id is out of
    range."""
    fmt, n = table.fmt, table.cols
    if fmt in VALUE_BYTES:
        grid = -(-(count * n) // THREADS)
        _plain(fmt)[grid, THREADS, stream](out, error, ids, table.data, count, table.rows, n, failure)
        return
    args = out, error, ids, table.data, table.rows, FORMATS[fmt].row_bytes(n), n, failure
    _blocks(fmt)[(-(-n // 1024), count), 32, stream, 4 * table_words(UNITS[fmt])](*args)
