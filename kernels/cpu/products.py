"""Matrix products on quantized rows. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..formats import FORMATS
from ..formats.matrix import Matrix
from . import gemm
from . import tasktable as t
from .abi import Step
from .library import library
from .sizes import ROWS_AT_ONCE, panel_slots
from .steps import Steps, expect
from .workers import address

CHUNK_BYTES = 128 * 1024
"""Weights a thread reads in a row: enough to amortise the claim, and the first lines, which no one has fetched."""

SMALL_BYTES = 16 * 1024
"""Products over fewer weight bytes per thread are not worth a second thread."""

ROW_STEP = 16
"""Chunks are multiples of this many rows where possible: 64 bytes of output, so threads share no cache line."""

ADVISED_BYTES = 512 << 20
"""Most that is asked for at once for a chunk of tokens: more would push itself out of memory before it is used."""


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


class ProductOps(Steps):
    """Everything that multiplies with weights."""

    def linear(self, x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] == w.cols and not w.experts, "linear", x.shape, w.data.shape, w.cols)
        out = self.empty(len(x), w.rows)
        self.run(self._product(self.at(x), len(x), 1, w, act, out))
        return out

    def grouped_linear(self, x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        x = self.f32(x, "x")
        fits = x.ndim == 3 and x.shape[2] == w.cols and w.rows % x.shape[1] == 0 and not w.experts
        expect(fits, "grouped_linear", x.shape, w.data.shape)
        out = self.empty(len(x), w.rows)
        self.run(self._product(self.at(x), len(x), x.shape[1], w, act, out))
        return out

    def hc_mix(self, X: np.ndarray, fn: Matrix, eps: float) -> np.ndarray:
        X = self.f32(X, "X")
        tokens, n = len(X), fn.cols
        expect(X.ndim == 3 and X.shape[1] * X.shape[2] == n, "hc_mix", X.shape, n)
        out, flat = self.empty(tokens, fn.rows), self.temp(4 * tokens * n)
        norm = Step(t.RMS_NORM, tokens, self.chunk(tokens, n), (self.at(X), 0, flat, n, eps))
        self.run([norm, *self._product(flat, tokens, 1, fn, "float", out)])
        return out

    def _product(self, x: int, tokens: int, groups: int, w: Matrix, act: str, out: np.ndarray) -> list[Step]:
        """All (tokens, groups) inputs at ``x`` times all rows, by the way that suits their number."""
        n, weight = w.cols, weight_address(w)
        parts = gemm.wanted(tokens, w, act)
        if parts is None:
            kernel = row_kernel(w.fmt, act)
            (packed, size), steps = self._packed(x, tokens * groups, w, act)
            inputs = packed, size, tokens, groups, w.rows // groups
            rows = kernel.rows, weight, w.row_bytes, n, *inputs, self.at(out), w.rows
            return [*steps, Step(t.LINEAR, w.rows, self._row_chunk(w.rows, w.row_bytes), rows)]
        panel_bytes = parts.panel_bytes(tokens, n)
        panel = self.temp(groups * panel_bytes)
        chunk = max(1, min(5, w.rows // (4 * self.threads * ROWS_AT_ONCE))) * ROWS_AT_ONCE
        pack = parts.pack, x, n, panel, panel_bytes, groups
        table = address(parts.table)
        values = (table, weight, w.row_bytes, n, panel, panel_bytes, tokens, w.rows // groups, self.at(out), w.rows)
        return [
            Step(t.GEMM_PACK, tokens * groups, max(1, 16384 // n), pack),
            Step(t.GEMM, w.rows, chunk, values, parts.work_bytes(n)),
        ]

    def _packed(self, x: int, count: int, w: Matrix, act: str) -> tuple[tuple[int, int], list[Step]]:
        """Address and size of each of ``count`` inputs at ``x``, packed for weights like ``w``; and the step."""

        def make() -> tuple[tuple[int, int], list[Step]]:
            kernel, n = row_kernel(w.fmt, act), w.cols
            size = kernel.packed_bytes(n)
            packed = self.temp(count * size)
            step = Step(t.PACK, count, max(1, 16384 // n), (kernel.pack, x, n, packed, size))
            return (packed, size), [step]

        return self.shared(("packed", x, count, w.fmt, act, w.cols), make)

    def _row_chunk(self, rows: int, row_bytes: int) -> int:
        """Rows a thread claims at once."""
        share = -(-rows // (4 * self.threads))
        chunk = max(min(CHUNK_BYTES // row_bytes, share), SMALL_BYTES // row_bytes, 1)
        return chunk // ROW_STEP * ROW_STEP if chunk >= ROW_STEP else chunk

    # --- experts

    def expert_linear(self, x: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        x, ids = self.f32(x, "x"), self.i32(ids, "ids")
        expect(
            x.ndim == 2 and x.shape[1] == w.cols and ids.shape[:1] == x.shape[:1], "expert_linear", x.shape, ids.shape
        )
        expect(w.experts > 0 and ids.ndim == 2, "expert_linear needs a stack", w.data.shape)
        tokens, K = ids.shape
        out = self.empty(tokens, K, w.rows)
        parts = gemm.expert_wanted(tokens, K, w, act)
        (order, starts, used), steps = self._grouped(ids, w.experts)
        if parts is not None:
            steps += self._expert_gemm(parts, self.at(x), ids, K, w, (order, starts, used), self.at(out))
        else:
            n = w.cols
            (packed, size), pack = self._packed(self.at(x), tokens, w, act)
            block = max(ROW_STEP, min(CHUNK_BYTES // w.row_bytes, -(-w.rows // 2)) // ROW_STEP * ROW_STEP)
            blocks = -(-w.rows // block)
            values = (
                row_kernel(w.fmt, act).rows, weight_address(w), w.row_bytes, w.rows, n, packed, size, K,
                order, starts, used, block, blocks, self.at(out),
            )  # fmt: skip
            steps += [*pack, Step(t.EXPERT_LINEAR, min(ids.size, w.experts) * blocks, 1, values)]
        self.run(steps, f"an expert id lies outside 0..{w.experts - 1}")
        return out

    def expert_sum(self, mid: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        mid, ids = self.f32(mid, "mid"), self.i32(ids, "ids")
        fits = mid.ndim == 3 and mid.shape[2] == w.cols and mid.shape[:2] == ids.shape
        expect(fits, "expert_sum", mid.shape, ids.shape)
        expect(w.experts > 0, "expert_sum needs a stack", w.data.shape)
        tokens, K = ids.shape
        out = self.empty(tokens, w.rows)
        parts = gemm.expert_wanted(tokens, K, w, act)
        (order, starts, used), steps = self._grouped(ids, w.experts)
        if parts is not None:
            pairs = self.temp(4 * tokens * K * w.rows)
            steps += self._expert_gemm(parts, self.at(mid), ids, 1, w, (order, starts, used), pairs)
            steps.append(Step(t.SUM_SLOTS, tokens, 1, (pairs, self.at(out), K, w.rows)))
        else:
            (packed, size), pack = self._packed(self.at(mid), tokens * K, w, act)
            share = -(-w.rows // (2 * self.threads))
            block = max(ROW_STEP, min(CHUNK_BYTES // w.row_bytes, share, 128) // ROW_STEP * ROW_STEP)
            values = (
                row_kernel(w.fmt, act).rows, weight_address(w), w.row_bytes, w.rows, w.cols, packed, size, tokens, K,
                order, starts, used, block, self.at(out),
            )  # fmt: skip
            steps += [*pack, Step(t.EXPERT_SUM, -(-w.rows // block), 1, values, 4 * block * tokens * K)]
        self.run(steps, f"an expert id lies outside 0..{w.experts - 1}")
        return out

    def _grouped(self, ids: np.ndarray, experts: int) -> tuple[tuple[int, int, int], list[Step]]:
        """Tables ``order``, ``starts`` and ``used`` of the task GROUP_PAIRS for ids (T, K), and the step."""

        def make() -> tuple[tuple[int, int, int], list[Step]]:
            tables = self.temp(4 * ids.size), self.temp(4 * (experts + 1)), self.temp(4 * (experts + 1))
            return tables, [Step(t.GROUP_PAIRS, 1, 1, (self.at(ids), ids.size, experts, *tables))]

        tables, steps = self.shared(("grouped", address(ids), ids.size, experts), make)
        return tables, list(steps)

    def _expert_gemm(
        self, parts: gemm.Parts, x: int, ids: np.ndarray, slots: int, w: Matrix, tables: tuple[int, int, int], out: int
    ) -> list[Step]:
        """All pairs through their experts -> out (tokens, K, rows); ``slots`` pairs in turn have one input at ``x``."""
        n, pairs, group_bytes = w.cols, ids.size, parts.group_bytes(w.cols)
        most, blocks = min(pairs, w.experts), -(-w.rows // gemm.BLOCK_ROWS)
        panel, own = self.temp(parts.panel_bytes(panel_slots(pairs, most), n)), parts.work_bytes(n)
        values = (
            address(parts.table), weight_address(w), w.row_bytes, w.rows, n, panel, group_bytes, *tables,
            gemm.BLOCK_ROWS, blocks, out, own,
        )  # fmt: skip
        # all pairs may want the same expert
        work = own + 4 * gemm.BLOCK_ROWS * (pairs + 4)
        return [
            Step(t.GEMM_PACK_PAIRS, most, 1, (parts.pack, x, n, panel, group_bytes, slots, *tables)),
            Step(t.EXPERT_GEMM, most * blocks, 1, values, -(-work // 128) * 128),
        ]

    def advise(self, ids: np.ndarray, w: Matrix) -> None:
        ids = self.i32(ids, "ids")
        expect(w.experts > 0, "advise needs a stack", w.data.shape)
        size = w.rows * w.row_bytes
        (_, _, used), steps = self._grouped(ids, w.experts)
        values = (used, weight_address(w), size, mmap.PAGESIZE, ADVISED_BYTES // size)
        self.run([*steps, Step(t.ADVISE, 1, 1, values)], f"an expert id lies outside 0..{w.experts - 1}")

    # --- looking up

    def embed(self, table: Matrix, ids: np.ndarray) -> np.ndarray:
        return table.rows_at(self.i32(ids, "ids"))

    def take_rows(self, table: np.ndarray, ids: np.ndarray) -> np.ndarray:
        table, ids = self.i32(table, "table"), self.i32(ids, "ids")
        expect(table.ndim == 2 and ids.ndim == 1, "take_rows", table.shape, ids.shape)
        out = self.empty(len(ids), table.shape[1], dtype=np.int32)
        values = (self.at(table), self.at(ids), self.at(out), *table.shape)
        self.run([Step(t.TAKE_ROWS, len(ids), 64, values)], f"a row lies outside 0..{len(table) - 1}")
        return out
