"""Matrix products on quantized rows (signatures as in ``kernels.reference.linear``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..formats import FORMATS
from ..formats.matrix import Matrix
from . import gemm
from . import tasktable as t
from .arrays import address, expect, f32, i32
from .library import library
from .workers import POOL, Step
from .workspace import scratch

CHUNK_BYTES = 128 * 1024
"""Weights a thread reads in a row: enough to amortise the claim, and the first lines, which no one has fetched."""

SMALL_BYTES = 16 * 1024
"""Products over fewer weight bytes per thread are not worth a second thread."""

ROW_STEP = 16
"""Chunks are multiples of this many rows where possible: 64 bytes of output, so threads share no cache line."""


@dataclass(frozen=True)
class RowKernel:
    """Entry points of one (format, activation) pair."""

    pack: int
    rows: int
    packed_bytes: Callable[[int], int]


@cache
def row_kernel(fmt: str, act: str) -> RowKernel:
    """The compiled kernels of a pair; ValueError if there are none."""
    name = f"{fmt}.{act}"
    if f"rows.{name}" not in library():
        raise ValueError(f"no kernel for {fmt} weights with activation rounding {act!r}")
    size = library().function(f"size.{name}", 2)

    @cache
    def packed_bytes(n: int) -> int:
        result = ctypes.c_int64()
        size(n, ctypes.addressof(result))
        return -(-result.value // 64) * 64

    return RowKernel(library().address(f"pack.{name}"), library().address(f"rows.{name}"), packed_bytes)


def weight_address(w: Matrix) -> int:
    """Address of the first block; checked once per matrix, then remembered on it."""
    known = w.__dict__.get("_cpu_address")
    if known is None:
        expect(w.data.dtype == np.uint8 and w.data.flags.c_contiguous, "weights must be contiguous bytes", w.data.dtype)
        expect(w.data.shape[-2:] == (w.rows, FORMATS[w.fmt].row_bytes(w.cols)), "weights", w.data.shape, w.fmt, w.cols)
        known = w.__dict__["_cpu_address"] = address(w.data)
    return known


def row_chunk(rows: int, row_bytes: int) -> int:
    """Rows a thread claims at once."""
    share = -(-rows // (4 * POOL.threads))
    chunk = max(min(CHUNK_BYTES // row_bytes, share), SMALL_BYTES // row_bytes, 1)
    return chunk // ROW_STEP * ROW_STEP if chunk >= ROW_STEP else chunk


def linear_steps(x: int, tokens: int, groups: int, w: Matrix, act: str, packed: int, out: int) -> tuple[Step, Step]:
    """Pack (tokens, groups) inputs at ``x`` into ``packed``, then all rows of ``w``; see ``packed_size``."""
    kernel, n, size = row_kernel(w.fmt, act), w.cols, packed_size(w, act)
    row_bytes = w.row_bytes
    many = tokens * groups
    return (
        (t.PACK, many, max(1, 16384 // n), (kernel.pack, x, n, packed, size)),
        (
            t.LINEAR,
            w.rows,
            row_chunk(w.rows, row_bytes),
            (
                kernel.rows,
                weight_address(w),
                row_bytes,
                n,
                packed,
                size,
                tokens,
                groups,
                w.rows // groups,
                out,
                w.rows,
            ),
        ),
    )


def packed_size(w: Matrix, act: str) -> int:
    """Bytes of one packed input of ``w``."""
    return row_kernel(w.fmt, act).packed_bytes(w.cols)


def linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """x (T, n) -> (T, rows)."""
    x = f32(x, "x")
    expect(x.ndim == 2 and x.shape[1] == w.cols and not w.experts, "linear", x.shape, w.data.shape, w.cols)
    tokens = x.shape[0]
    out = np.empty((tokens, w.rows), np.float32)
    _product(x, tokens, 1, w, act, out)
    return out


def _product(x: np.ndarray, tokens: int, groups: int, w: Matrix, act: str, out: np.ndarray) -> None:
    """All inputs times all rows, by the way that suits their number."""
    parts = gemm.wanted(tokens, w, act)
    if parts is not None:
        panel, work = scratch(*gemm.areas(parts, tokens, groups, w.cols))
        at = weight_address(w)
        POOL.run(*gemm.gemm_steps(parts, address(x), tokens, groups, w, at, panel, work, address(out)))
    else:
        (packed,) = scratch(tokens * groups * packed_size(w, act))
        POOL.run(*linear_steps(address(x), tokens, groups, w, act, packed, address(out)))


def grouped_linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """x (T, G, n) -> (T, rows): group g uses rows g*r .. (g+1)*r - 1 and x[:, g] only."""
    x = f32(x, "x")
    expect(x.ndim == 3 and x.shape[2] == w.cols and w.rows % x.shape[1] == 0, "grouped_linear", x.shape, w.data.shape)
    tokens, groups = x.shape[:2]
    out = np.empty((tokens, w.rows), np.float32)
    _product(x, tokens, groups, w, act, out)
    return out


def _grouping(ids: np.ndarray, w: Matrix) -> tuple[int, list[int]]:
    """Distinct experts at most, and the bytes of the tables of GROUP_PAIRS: order, starts, used, error flag."""
    most = min(ids.size, w.experts)
    return most, [4 * ids.size, 4 * (w.experts + 1), 4 * (w.experts + 1), 8]


def _check_ids(error: int, w: Matrix) -> None:
    if ctypes.c_int64.from_address(error).value:
        raise IndexError(f"an expert id lies outside 0..{w.experts - 1}")


def expert_linear(x: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """x (T, n), ids int32 (T, K) -> (T, K, rows). IndexError for an id that is no expert."""
    x, ids = f32(x, "x"), i32(ids, "ids")
    expect(x.ndim == 2 and x.shape[1] == w.cols and ids.shape[:1] == x.shape[:1], "expert_linear", x.shape, ids.shape)
    expect(w.experts > 0 and ids.ndim == 2, "expert_linear needs a stack", w.data.shape)
    tokens, K = ids.shape
    out = np.empty((tokens, K, w.rows), np.float32)
    parts = gemm.expert_wanted(tokens, K, w, act)
    if parts is not None:
        _expert_product(parts, x, ids, True, w, address(out))
        return out
    kernel, size, n = row_kernel(w.fmt, act), packed_size(w, act), w.cols
    most, tables = _grouping(ids, w)
    packed, order, starts, used, error = scratch(tokens * size, *tables)
    ctypes.c_int64.from_address(error).value = 0
    block = max(ROW_STEP, min(CHUNK_BYTES // w.row_bytes, -(-w.rows // 2)) // ROW_STEP * ROW_STEP)
    blocks = -(-w.rows // block)
    POOL.run(
        (t.PACK, tokens, max(1, 16384 // n), (kernel.pack, address(x), n, packed, size)),
        (t.GROUP_PAIRS, 1, 1, (address(ids), tokens * K, K, w.experts, order, starts, used, error)),
        (
            t.EXPERT_LINEAR,
            most * blocks,
            1,
            (
                kernel.rows,
                weight_address(w),
                w.row_bytes,
                w.rows,
                n,
                packed,
                size,
                K,
                order,
                starts,
                used,
                block,
                blocks,
                address(out),
            ),
        ),
    )
    _check_ids(error, w)
    return out


def _expert_product(
    parts: gemm.Parts, x: np.ndarray, ids: np.ndarray, shared: bool, w: Matrix, out: int, *more: Step
) -> None:
    """All pairs through their experts -> out (tokens, K, rows), then the steps ``more``."""
    tokens, K = ids.shape
    _, tables = _grouping(ids, w)
    order, starts, used, error, panel, work = scratch(*tables, *gemm.expert_areas(parts, tokens, K, w))
    ctypes.c_int64.from_address(error).value = 0
    places = order, starts, used
    POOL.run(
        (t.GROUP_PAIRS, 1, 1, (address(ids), tokens * K, K, w.experts, *places, error)),
        *gemm.expert_steps(parts, address(x), tokens, K, shared, w, weight_address(w), places, panel, work, out),
        *more,
    )
    _check_ids(error, w)


def expert_sum(mid: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """mid (T, K, ff), ids int32 (T, K) -> (T, rows), summed in slot order. IndexError for an id that is no expert."""
    mid, ids = f32(mid, "mid"), i32(ids, "ids")
    expect(mid.ndim == 3 and mid.shape[2] == w.cols and mid.shape[:2] == ids.shape, "expert_sum", mid.shape, ids.shape)
    expect(w.experts > 0, "expert_sum needs a stack", w.data.shape)
    tokens, K = ids.shape
    out = np.empty((tokens, w.rows), np.float32)
    gemm_parts = gemm.expert_wanted(tokens, K, w, act)
    if gemm_parts is not None:
        pairs = np.empty((tokens, K, w.rows), np.float32)
        add = (t.SUM_SLOTS, tokens, 1, (address(pairs), address(out), K, w.rows))
        _expert_product(gemm_parts, mid, ids, False, w, address(pairs), add)
        return out
    kernel, size, n = row_kernel(w.fmt, act), packed_size(w, act), w.cols
    most, tables = _grouping(ids, w)
    block = max(ROW_STEP, min(CHUNK_BYTES // w.row_bytes, -(-w.rows // (2 * POOL.threads)), 128) // ROW_STEP * ROW_STEP)
    blocks = -(-w.rows // block)
    per_thread = 4 * block * tokens * K
    packed, order, starts, used, error, parts = scratch(tokens * K * size, *tables, per_thread * POOL.threads)
    ctypes.c_int64.from_address(error).value = 0
    POOL.run(
        (t.PACK, tokens * K, max(1, 16384 // n), (kernel.pack, address(mid), n, packed, size)),
        (t.GROUP_PAIRS, 1, 1, (address(ids), tokens * K, K, w.experts, order, starts, used, error)),
        (
            t.EXPERT_SUM,
            blocks,
            1,
            (
                kernel.rows,
                weight_address(w),
                w.row_bytes,
                w.rows,
                n,
                packed,
                size,
                tokens,
                K,
                order,
                starts,
                used,
                block,
                parts,
                address(out),
            ),
        ),
    )
    _check_ids(error, w)
    return out


def embed(table: Matrix, ids: np.ndarray) -> np.ndarray:
    """Rows ``ids`` (T,) of the embedding table as float32 (T, D). IndexError for an id outside the table."""
    ids = i32(ids, "ids")
    if ids.size and (ids.min() < 0 or ids.max() >= table.rows):
        raise IndexError(f"a token id lies outside 0..{table.rows - 1}")
    rows = Matrix(table.fmt, table.data[ids], len(ids), table.cols)
    return np.ascontiguousarray(rows.dequantize())
