"""Embedding look-up: rows of a weight matrix as floats. Block formats are decoded by ``units``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import bits_to_float, copy16, copy_commit, copy_wait0, permute_bytes, sync_warp
from ..driver.launching import allow_shared
from ..driver.shim import cuda, i32
from .dots import BIASED, BYTE_BIAS, EXPONENT_23
from .plain import VALUE_BYTES, _reader
from .units import UNITS

F32, I32 = np.float32, np.int32
THREADS = 256
SELECT = I32(0x7540)


@cuda.jit(device=True)
def _minimum(m, h):
    """Return byte h of two."""
    return (m >> (8 * h)) & 255


@cache
def _plain(fmt: str) -> Any:
    _, one = _reader(fmt)
    size = VALUE_BYTES[fmt]

    @cuda.jit
    def look_up(out, ids, raw, count, rows, n, error, failure):
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
    table_words = 0 if unit.table is None else 32 * len(table)
    chunk_bytes = 32 // per_block * block_bytes
    room = table_words + (chunk_bytes + 46) // 16 * 4
    per_lane = (chunk_bytes + 15) // 512 + 1

    @cuda.jit(device=True)
    def store_four(out, at, q, f):
        """Store four weights f q of a word q."""
        biased = I32(q ^ BYTE_BIAS)
        for k in range(4):
            out[at + k] = f * (bits_to_float(permute_bytes(biased, EXPONENT_23, SELECT + k)) - BIASED)

    @cuda.jit
    def look_up(out, ids, raw, count, rows, row_bytes, n, error, failure):
        """Decode 32 units of one row per warp."""
        lane = cuda.threadIdx.x
        words = cuda.shared.array(0, i32)
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(lane, table_words, 32):
                words[i] = looked_up[i >> 5]
        token = cuda.blockIdx.y
        row = ids[token]
        if row < 0 or row >= rows:
            error[0] = I32(failure)
            row = I32(0)
        start = np.int64(row) * row_bytes + cuda.blockIdx.x * chunk_bytes
        begin = start & ~15
        size = min(chunk_bytes, row_bytes - cuda.blockIdx.x * chunk_bytes)
        pieces = (start - begin + size + 15) >> 4
        for k in range(per_lane):
            if lane + 32 * k < pieces:
                copy16(words, table_words + 4 * (lane + 32 * k), raw, begin + 16 * (lane + 32 * k))
        copy_commit()
        copy_wait0()
        sync_warp()
        number = cuda.blockIdx.x * 32 + lane
        if number * 32 < n:
            block, j = lane // per_block, lane % per_block
            base = 4 * table_words + (start - begin) + block * block_bytes
            q0, q1, q2, q3, q4, q5, q6, q7, d, s, t, low, m = decode(words, base & ~3, base & 3, j, words)
            f, g = d * F32(s), d * F32(t)
            target = np.int64(token) * n + number // per_block * (32 * per_block)
            rest = g if halves else f
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
            if number * 32 < n:
                for k in range(32):
                    at = target + 32 * j + k
                    out[at] = out[at] - low * F32(_minimum(m, k >> 4))

    return look_up, 4 * room


def look_up(
    stream: Any, out: Any, error: Any, ids: Any, raw: Any, fmt: str, count: int, rows: int, row_bytes: int, n: int,
    failure: int,
) -> None:  # fmt: skip
    """Look up rows ids (count,) of (rows, n) as float32; ``error[0]`` becomes ``failure`` if an id is out of range."""
    if not count:
        return
    if fmt in VALUE_BYTES:
        grid = -(-(count * n) // THREADS)
        _plain(fmt)[grid, THREADS, stream](out, ids, raw, count, rows, n, error, failure)
        return
    kernel, shared = _blocks(fmt)
    args = out, ids, raw, count, rows, row_bytes, n, error, failure
    allow_shared(kernel, shared, args)
    kernel[(-(-n // 1024), count), 32, stream, shared](*args)
