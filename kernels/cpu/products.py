"""The CPU backend's ops that read weights, declared in ``ds4ref.kernels.ops``: matrix products and table look-ups.

Few inputs are multiplied by *row kernels*, which decode each row of weights for up to four inputs at once; many by the
GEMM (``gemm``). Either way inputs are first *packed*: copied, perhaps rounded, in the order in which a kernel reads.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from ..binding import bind
from ..formats.apart import ApartRows
from ..formats.matrix import Matrix
from . import gemm
from . import tasktable as t
from .abi import Step
from .library import available, entry, entry_address
from .sizes import A8_BLOCK, Q8K_BLOCK, Q8K_SUM, panel_slots
from .steps import Steps
from .workers import address

CHUNK_BYTES = 128 * 1024
"""Bytes of weights that a thread claims at once: enough to make up for the cost of the claim and for the first cache
lines, which are not prefetched."""

SMALL_BYTES = 16 * 1024
"""Bytes of weights below which dividing them among threads costs more time than it saves."""

ROW_STEP = 16
"""Chunks are multiples of this many rows if possible: that is 64 bytes of output, so threads share no cache line."""

ADVISED_BYTES = 512 << 20
"""Maximum bytes of experts' weights to prefetch for a chunk of tokens: more would be evicted before use."""

ROUNDED_BLOCK = {"a8": A8_BLOCK, "q8k": Q8K_BLOCK}
"""Number of inputs that share a scale, by activation rounding."""


@dataclass(frozen=True)
class RowKernel:
    """The compiled row kernel for one weight format and one rounding of the inputs.

    pack          address of the function that packs an input
    rows          address of the function that multiplies rows by any number of packed inputs, up to four at once
                  (``simd.row_kernel.for_any_count``)
    packed_bytes  function that returns the bytes of one packed input of n values
    rounding      "a8" or "q8k" if inputs must be rounded before packing; "" if packing rounds them or they stay exact
    """

    pack: int
    rows: int
    packed_bytes: Callable[[int], int]
    rounding: str = ""


@cache
def row_kernel(fmt: str, act: str) -> RowKernel:
    """Return the compiled row kernel for weights of format ``fmt`` and input rounding ``act`` or, if there is none, the
    format's kernel for float inputs with ``rounding`` set.

    Raise ValueError if neither exists.
    """
    name = f"{fmt}.{act}"
    if not available(f"rows.{name}"):
        if act not in ROUNDED_BLOCK:
            raise ValueError(f"no kernel for {fmt} weights with activation rounding {act!r}")
        return replace(row_kernel(fmt, "float"), rounding=act)
    inputs = name if available(f"pack.{name}") else "floats"
    size = entry(f"size.{inputs}", 2)

    @cache
    def packed_bytes(n: int) -> int:
        result = ctypes.c_int64()
        size(n, ctypes.addressof(result))
        return -(-result.value // 64) * 64

    return RowKernel(entry_address(f"pack.{inputs}"), entry_address(f"rows.{name}"), packed_bytes)


class Place(NamedTuple):
    """The address of a matrix and its strides, as kernels take them.

    at            address of the first block; if codes and scales are stored apart, address of a pair of addresses, of
                  the codes and of the scales
    row_bytes     bytes from one row (of codes) to the next
    expert_bytes  bytes from one matrix of a stack (or its pair) to the next; 0 if ``at`` is the address of a table with
                  the address of each matrix
    code_bytes, scale_bytes  sizes of one matrix's codes and scales if stored apart, else its size and 0
    kept          array of all pairs, or of all addresses, to keep it alive
    """

    at: int
    row_bytes: int
    expert_bytes: int
    code_bytes: int
    scale_bytes: int
    kept: np.ndarray | None = None


def place_of(w: Matrix) -> Place:
    """Return the address and strides of a matrix; they are computed once and stored in the ``Matrix`` object."""
    place = w.__dict__.get("_cpu_place")
    if place is None:
        size = w.rows * w.row_bytes
        whole = not isinstance(w.data, ApartRows)
        place = Place(address(w.data), w.row_bytes, size, size, 0) if whole else _apart(w.data)
        w.__dict__["_cpu_place"] = place
    return place


def scattered(w: Matrix, table: np.ndarray) -> Matrix:
    """Return a stack like ``w`` whose matrices are at the addresses in ``table``, int64 (experts,), which is read each
    time an op runs.

    Its attribute ``data`` is still that of ``w``.
    """
    stack, size = Matrix(w.fmt, w.data, w.rows, w.cols), w.rows * w.row_bytes
    stack.__dict__["_cpu_place"] = Place(address(table), w.row_bytes, 0, size, 0, table)
    return stack


def _apart(data: ApartRows) -> Place:
    pairs = np.array([[address(part) for part in pair] for pair in zip(data.codes, data.scales, strict=True)], np.int64)
    sizes = data.codes[0].nbytes, data.scales[0].nbytes
    return Place(address(pairs), data.code_bytes, pairs.strides[0], *sizes, pairs)


class ProductOps(Steps):
    """The ops that multiply by weights or look up rows of tables."""

    @bind
    def linear(self, x, w, act, out, T):
        self.run(self._product(self.at(x), T, 1, w, act, out))

    @bind
    def grouped_linear(self, x, w, act, out, T, G):
        self.run(self._product(self.at(x), T, G, w, act, out))

    @bind
    def hc_mix(self, X, fn, eps, out, T):
        n = fn.cols
        flat = self.temp(4 * T * n)
        norm = Step(t.RMS_NORM, T, self.chunk(T, n), (self.at(X), 0, flat, n, eps))
        self.run([norm, *self._product(flat, T, 1, fn, "float", out)])

    def _product(self, x: int, tokens: int, groups: int, w: Matrix, act: str, out: np.ndarray) -> list[Step]:
        """Return the steps that multiply the inputs at address ``x``, float32 (tokens, groups, w.cols), by all rows of
        ``w``, by GEMM or row kernels depending on the number of tokens; each group has its share of the rows."""
        n, place = w.cols, place_of(w)
        parts = gemm.parts_for(tokens, w, act)
        if parts is None:
            kernel = row_kernel(w.layout, act)
            (packed, size), steps = self._packed(x, tokens * groups, w, act)
            inputs = packed, size, tokens, groups, w.rows // groups
            rows = kernel.rows, place.at, place.row_bytes, n, *inputs, self.at(out), w.rows
            return [*steps, Step(t.LINEAR, w.rows, self._row_chunk(w.rows, place.row_bytes), rows)]
        panel_bytes = parts.panel_bytes(tokens, n)
        panel = self.temp(groups * panel_bytes)
        at_once = parts.rows_at_once
        chunk = max(1, min(60 // at_once, w.rows // (4 * self.threads * at_once))) * at_once
        x, steps = self._rounded(x, tokens * groups, n, parts.rounding)
        pack = parts.pack, x, n, panel, panel_bytes, groups
        panels = panel, panel_bytes, tokens, w.rows // groups
        values = address(parts.table), place.at, place.row_bytes, n, *panels, self.at(out), w.rows
        return [
            *steps,
            Step(t.GEMM_PACK, tokens * groups, max(1, 16384 // n), pack),
            Step(t.GEMM, w.rows, chunk, values, parts.work_bytes(n)),
        ]

    def _packed(self, x: int, count: int, w: Matrix, act: str) -> tuple[tuple[int, int], list[Step]]:
        """Return (address, bytes of each) of the ``count`` inputs at address ``x`` once packed for the row kernel of
        ``w``, and the steps that pack them."""

        def make() -> tuple[tuple[int, int], list[Step]]:
            kernel, n = row_kernel(w.layout, act), w.cols
            size = kernel.packed_bytes(n)
            source, steps = self._rounded(x, count, n, kernel.rounding)
            packed = self.temp(count * size)
            step = Step(t.PACK, count, max(1, 16384 // n), (kernel.pack, source, n, packed, size))
            return (packed, size), [*steps, step]

        return self.shared(("packed", x, count, w.layout, act, w.cols), make)

    def _rounded(self, x: int, count: int, n: int, act: str) -> tuple[int, list[Step]]:
        """Return the address of ``count`` inputs of ``n`` floats, those at address ``x`` rounded as ``act`` says, and
        the steps that round them; ``x`` itself if ``act`` is ""."""
        if not act:
            return x, []
        block = ROUNDED_BLOCK[act]
        if n % block:
            raise ValueError(f"activation rounding {act!r} works in blocks of {block}, not on {n} inputs")

        def make() -> tuple[int, list[Step]]:
            blocks = count * n // block
            codes, scales, out = self.temp(count * n), self.temp(4 * blocks), self.temp(4 * count * n)
            chunk = self.chunk(blocks, 2 * block)
            round_ = Step(t.QUANTIZE_A8, blocks, chunk, (x, codes, scales))
            if act == "q8k":
                round_ = Step(t.QUANTIZE_Q8K, blocks, chunk, (x, codes, scales, self.temp(2 * count * n // Q8K_SUM)))
            return out, [round_, Step(t.SCALE_CODES, blocks, chunk, (codes, scales, out, block))]

        return self.shared(("rounded", x, count, act, n), make)

    def _row_chunk(self, rows: int, row_bytes: int) -> int:
        """Return the number of weight rows that a thread claims at once."""
        share = -(-rows // (4 * self.threads))
        chunk = max(min(CHUNK_BYTES // row_bytes, share), SMALL_BYTES // row_bytes, 1)
        return chunk // ROW_STEP * ROW_STEP if chunk >= ROW_STEP else chunk

    # --- experts

    @bind
    def expert_linear(self, x, ids, w, act, out, T, K, failure):
        parts = gemm.expert_parts_for(T, K, w, act)
        (order, starts, used), steps = self._grouped(ids, w.experts)
        if parts is not None:
            steps += self._expert_gemm(parts, self.at(x), ids, K, w, (order, starts, used), self.at(out))
        else:
            n, place = w.cols, place_of(w)
            (packed, size), pack = self._packed(self.at(x), T, w, act)
            block = max(ROW_STEP, min(CHUNK_BYTES // place.row_bytes, -(-w.rows // 2)) // ROW_STEP * ROW_STEP)
            blocks = -(-w.rows // block)
            values = (
                row_kernel(w.layout, act).rows, *place[:3], w.rows, n, packed, size, K,
                order, starts, used, block, blocks, self.at(out),
            )  # fmt: skip
            steps += [*pack, Step(t.EXPERT_LINEAR, min(ids.size, w.experts) * blocks, 1, values)]
        self.run(steps, failure)

    @bind
    def expert_sum(self, mid, ids, w, act, out, T, K, failure):
        parts = gemm.expert_parts_for(T, K, w, act)
        (order, starts, used), steps = self._grouped(ids, w.experts)
        if parts is not None:
            pairs = self.temp(4 * T * K * w.rows)
            steps += self._expert_gemm(parts, self.at(mid), ids, 1, w, (order, starts, used), pairs)
            steps.append(Step(t.SUM_SLOTS, T, 1, (pairs, self.at(out), K, w.rows)))
        else:
            (packed, size), pack = self._packed(self.at(mid), T * K, w, act)
            place, share = place_of(w), -(-w.rows // (2 * self.threads))
            block = max(ROW_STEP, min(CHUNK_BYTES // place.row_bytes, share, 128) // ROW_STEP * ROW_STEP)
            values = (
                row_kernel(w.layout, act).rows, *place[:3], w.rows, w.cols, packed, size, T, K,
                order, starts, used, block, self.at(out),
            )  # fmt: skip
            steps += [*pack, Step(t.EXPERT_SUM, -(-w.rows // block), 1, values, 4 * block * T * K)]
        self.run(steps, failure)

    def _grouped(self, ids: np.ndarray, experts: int) -> tuple[tuple[int, int, int], list[Step]]:
        """Return the addresses of the tables ``order``, ``starts`` and ``used`` that the task GROUP_PAIRS makes of ids
        (T, K), which list the (token, expert) pairs by expert, and the step that makes them."""

        def make() -> tuple[tuple[int, int, int], list[Step]]:
            tables = self.temp(4 * ids.size), self.temp(4 * (experts + 1)), self.temp(4 * (experts + 1))
            return tables, [Step(t.GROUP_PAIRS, 1, 1, (self.at(ids), ids.size, experts, *tables))]

        tables, steps = self.shared(("grouped", address(ids), ids.size, experts), make)
        return tables, list(steps)

    def _expert_gemm(
        self, parts: gemm.Parts, x: int, ids: np.ndarray, slots: int, w: Matrix, tables: tuple[int, int, int], out: int
    ) -> list[Step]:
        """Return the steps that multiply each (token, expert) pair's input by the expert's matrix, by GEMM.

        x       address of the inputs, each of which serves ``slots`` consecutive pairs
        tables  addresses that ``_grouped`` returned
        out     address of the results, float32 (tokens, K, w.rows)
        """
        n, pairs, group_bytes = w.cols, ids.size, parts.group_bytes(w.cols)
        block = -(-gemm.BLOCK_ROWS // parts.rows_at_once) * parts.rows_at_once
        max_used, blocks = min(pairs, w.experts), -(-w.rows // block)
        panel, gemm_bytes = self.temp(parts.panel_bytes(panel_slots(pairs, max_used), n)), parts.work_bytes(n)
        values = (
            address(parts.table), *place_of(w)[:3], w.rows, n, panel, group_bytes, *tables,
            block, blocks, out, gemm_bytes,
        )  # fmt: skip
        # all pairs may go to the same expert
        work = gemm_bytes + 4 * block * (pairs + 4)
        x, steps = self._rounded(x, pairs // slots, n, parts.rounding)
        return [
            *steps,
            Step(t.GEMM_PACK_PAIRS, max_used, 1, (parts.pack, x, n, panel, group_bytes, slots, *tables)),
            Step(t.EXPERT_GEMM, max_used * blocks, 1, values, -(-work // 128) * 128),
        ]

    @bind
    def advise(self, ids, w, failure):
        place = place_of(w)
        (_, _, used), steps = self._grouped(ids, w.experts)
        most = ADVISED_BYTES // (place.code_bytes + place.scale_bytes)
        sizes = place.expert_bytes, place.code_bytes, place.scale_bytes
        values = (used, place.at, *sizes, mmap.PAGESIZE, most)
        self.run([*steps, Step(t.ADVISE, 1, 1, values)], failure)

    # --- table look-ups

    @partial(bind, check_values=True)
    def embed(self, table, ids):
        return table.rows_at(ids)
