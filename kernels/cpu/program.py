"""A program: many steps prepared once, run as one job, again and again.

An op called from Python costs a few microseconds of checking, allocating and posting; a decoded token has hundreds of
them. A program lays out the steps of a whole token in memory, with fixed buffers in between, and leaves only a few
words to change from one run to the next (``items_word``, ``field_word``). The tasks are those of the ops, so a program
computes bit for bit what the ops compute.

Steps are added in order; each waits for all before it, except inside ``with program.together():``, whose steps wait
for what came before the block but not for each other.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.matrix import Matrix
from . import tasktable as t
from .abi import BLOCK_BYTES, SLOT, STEP_BEGUN, STEP_BYTES, STEP_HEADER, STEP_ITEMS, STEP_LEFT, STEP_WAIT, Task
from .arrays import address, chunk_of, expect
from .attention import HEAD_GROUP, INDEX_BLOCK, INDEX_LANES, POOL_CHANNELS, cached_rows, scratch_bytes
from .linear import CHUNK_BYTES, ROW_STEP, packed_size, row_chunk, row_kernel, weight_address
from .rounding import E2M1_BLOCK, E4M3_BLOCK
from .workers import POOL, aligned


@dataclass(frozen=True)
class Packed:
    """Inputs packed for weights of one format, activation rounding and width."""

    at: int
    size: int
    count: int
    key: tuple[str, str, int]


class Program:
    """Steps for one token; see the module. Methods named like ops take the arrays they write to as last argument."""

    def __init__(self) -> None:
        self._steps: list[tuple[Task, int, int, tuple, int]] = []
        self._keep: list[Any] = []
        self._wait = True
        self._block = False
        self.error = self.array(1, dtype=np.int64)

    # --- building

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """A zeroed buffer at a 128-byte boundary that lives as long as the program."""
        kind = np.dtype(dtype)
        memory = aligned(max(1, math.prod(shape)) * kind.itemsize)
        self._keep.append(memory)
        return memory.view(kind)[: math.prod(shape)].reshape(shape)

    def keep(self, *things: object) -> None:
        """Hold references to arrays whose addresses the steps contain."""
        self._keep.extend(things)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """The steps added inside do not depend on each other."""
        self._wait, self._block = True, True
        yield
        self._wait, self._block = True, False

    def step(self, task: Task, items: int, chunk: int, values: tuple) -> int:
        """Add a step; returns its number."""
        self._steps.append((task, items, chunk, values, int(self._wait)))
        if self._block:
            self._wait = False
        return len(self._steps) - 1

    def __len__(self) -> int:
        return len(self._steps)

    def seal(self) -> None:
        """Write the steps to memory; nothing can be added afterwards."""
        count = len(self._steps)
        self._memory = aligned(count * (STEP_BYTES + BLOCK_BYTES))
        base = self._memory.ctypes.data
        if not t.LINEAR.address:
            POOL.load()
        for number, (task, items, chunk, values, wait) in enumerate(self._steps):
            block = count * STEP_BYTES + number * BLOCK_BYTES
            task.pack(self._memory, block, *values)
            STEP_HEADER.pack_into(self._memory, number * STEP_BYTES, task.address, base + block, items, chunk, wait)
        self._base, self._count = base, count
        self.words = self._memory.view(np.int64)

    def items_word(self, step: int) -> int:
        """Index into ``words`` of a step's number of items."""
        return (step * STEP_BYTES + STEP_ITEMS) // SLOT

    def field_word(self, step: int, name: str) -> int:
        """Index into ``words`` of a field of a step's argument block."""
        fields = [field for field, _ in self._steps[step][0].fields]
        return (len(self._steps) * STEP_BYTES + step * BLOCK_BYTES) // SLOT + fields.index(name)

    def run(self) -> None:
        """Run all steps. IndexError if a row or expert number was out of range."""
        POOL.run_prepared(self._base, self._count)
        if self.error[0]:
            self.error[0] = 0
            raise IndexError("a row or expert number is out of range")

    # --- what the last run was spent on

    @property
    def tasks(self) -> list[str]:
        """The task of every step."""
        return [step[0].name for step in self._steps]

    def timeline(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the last run: when thread 0 began each step and when it found nothing left to claim (steps,), in the
        ticks of ``POOL.ticks``; and whether the step waited for all before it."""
        words = self.words[: len(self) * STEP_BYTES // SLOT].reshape(len(self), -1)
        return tuple(words[:, offset // SLOT].copy() for offset in (STEP_BEGUN, STEP_LEFT, STEP_WAIT))  # type: ignore

    # --- matrix products

    def read(self, x: np.ndarray) -> int:
        """Read the memory of x, whole pieces of 256 bytes of it, and do nothing with it."""
        out = self.array(16 * POOL.threads, dtype=np.int32)
        self.keep(x)
        return self.step(t.READ, x.nbytes // 256, CHUNK_BYTES // 256, (x.ctypes.data, address(out)))

    def pack(self, x: np.ndarray, w: Matrix, act: str) -> Packed:
        """Pack the inputs x (count, n) or (n,) for weights like ``w``."""
        n = w.cols
        expect(x.size % n == 0 and x.shape[-1] == n, "pack", x.shape, n)
        kernel, size, count = row_kernel(w.fmt, act), packed_size(w, act), x.size // n
        out = self.array(count * size, dtype=np.uint8)
        self.step(t.PACK, count, 1, (kernel.pack, address(x), n, address(out), size))
        return Packed(address(out), size, count, (w.fmt, act, n))

    def linear(self, packed: Packed, w: Matrix, out: np.ndarray, groups: int = 1) -> None:
        """Packed input (or one for each of ``groups``) times all rows of ``w`` -> out (rows,)."""
        fmt, act, n = packed.key
        expect((fmt, n) == (w.fmt, w.cols) and packed.count == groups and out.size == w.rows, "linear", packed, w.rows)
        values = (
            row_kernel(fmt, act).rows, weight_address(w), w.row_bytes, n, packed.at, packed.size,
            1, groups, w.rows // groups, address(out), w.rows,
        )  # fmt: skip
        self.step(t.LINEAR, w.rows, row_chunk(w.rows, w.row_bytes), values)

    def group_experts(self, ids: np.ndarray, experts: int) -> tuple[int, int, int]:
        """Sort the chosen experts ids (K,) as the expert steps want them."""
        order, starts = self.array(ids.size, dtype=np.int32), self.array(experts + 1, dtype=np.int32)
        used = self.array(experts + 1, dtype=np.int32)
        tables = address(order), address(starts), address(used)
        self.step(t.GROUP_PAIRS, 1, 1, (address(ids), ids.size, ids.size, experts, *tables, address(self.error)))
        return tables

    def expert_linear(self, packed: Packed, tables: tuple[int, int, int], K: int, w: Matrix, out: np.ndarray) -> None:
        """One packed input through the K chosen experts -> out (K, rows)."""
        fmt, act, n = packed.key
        expect((fmt, n) == (w.fmt, w.cols) and out.size == K * w.rows, "expert_linear", packed, out.shape)
        block = max(ROW_STEP, min(CHUNK_BYTES // w.row_bytes, -(-w.rows // 2)) // ROW_STEP * ROW_STEP)
        blocks = -(-w.rows // block)
        values = (
            row_kernel(fmt, act).rows, weight_address(w), w.row_bytes, w.rows, n, packed.at, packed.size, K,
            *tables, block, blocks, address(out),
        )  # fmt: skip
        self.step(t.EXPERT_LINEAR, min(K, w.experts) * blocks, 1, values)

    def expert_sum(self, packed: Packed, tables: tuple[int, int, int], K: int, w: Matrix, out: np.ndarray) -> None:
        """K packed inputs, each through its expert, summed in slot order -> out (rows,)."""
        fmt, act, n = packed.key
        expect((fmt, n) == (w.fmt, w.cols) and packed.count == K and out.size == w.rows, "expert_sum", packed)
        block = max(
            ROW_STEP, min(CHUNK_BYTES // w.row_bytes, -(-w.rows // (2 * POOL.threads)), 128) // ROW_STEP * ROW_STEP
        )
        parts = self.array(block * K * POOL.threads)
        values = (
            row_kernel(fmt, act).rows, weight_address(w), w.row_bytes, w.rows, n, packed.at, packed.size, 1, K,
            *tables, block, address(parts), address(out),
        )  # fmt: skip
        self.step(t.EXPERT_SUM, -(-w.rows // block), 1, values)

    # --- norms, hyper-connections, rope, rounding

    def rms_norm(self, x: np.ndarray, weight: np.ndarray | None, eps: float, out: np.ndarray) -> int:
        """Rows along the last axis of x."""
        n = x.shape[-1]
        rows = x.size // n
        values = (address(x), 0 if weight is None else address(weight), address(out), n, eps)
        self.keep(weight)
        return self.step(t.RMS_NORM, rows, chunk_of(rows, n, POOL.threads), values)

    def hc_split(
        self, mix: np.ndarray, scale: np.ndarray, base: np.ndarray, iters: int, eps: float,
        pre: np.ndarray, post: np.ndarray, comb: np.ndarray,
    ) -> None:  # fmt: skip
        """Mixing logits of one token -> pre (C,), post (C,), comb (C, C)."""
        arrays = (mix, scale, base, pre, post, comb)
        self.keep(scale, base)
        self.step(t.HC_SPLIT, 1, 1, (*map(address, arrays), pre.size, iters, eps))

    def hc_head_weights(
        self, mix: np.ndarray, scale: np.ndarray, base: np.ndarray, eps: float, out: np.ndarray
    ) -> None:
        """Mixing logits of the head -> stream weights (C,)."""
        self.keep(scale, base)
        self.step(t.HC_HEAD_WEIGHTS, 1, 1, (*map(address, (mix, scale, base, out)), out.size, eps))

    def hc_reduce(self, X: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Streams X (C, D), weights (C,) -> out (D,)."""
        self.step(t.HC_REDUCE, 1, 1, (address(X), address(w), address(out), *X.shape))

    def hc_expand(self, X: np.ndarray, y: np.ndarray, post: np.ndarray, comb: np.ndarray, out: np.ndarray) -> None:
        """Block output y (D,) and streams X (C, D) -> new streams out (C, D)."""
        C, D = X.shape
        self.step(t.HC_EXPAND, C, chunk_of(C, C * D, POOL.threads), (*map(address, (X, y, post, comb, out)), C, D))

    def rope(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, out: np.ndarray, inverse: bool = False) -> int:
        """x (H, w) at one position, cos and sin (R/2,)."""
        H, w = x.shape
        values = (*map(address, (x, cos, sin, out)), H, w, cos.size, int(inverse))
        return self.step(t.ROPE, H, chunk_of(H, w, POOL.threads), values)

    def round_e4m3(self, x: np.ndarray) -> int:
        """In place, blocks of 64."""
        return self.step(t.ROUND_E4M3, x.size // E4M3_BLOCK, x.size, (address(x), address(x)))

    def round_e2m1(self, x: np.ndarray) -> int:
        """In place, blocks of 32."""
        items = x.size // E2M1_BLOCK
        return self.step(t.ROUND_E2M1, items, chunk_of(items, 4 * E2M1_BLOCK, POOL.threads), (address(x), address(x)))

    def round_f16(self, x: np.ndarray) -> int:
        """In place."""
        return self.step(t.ROUND_F16, x.size, x.size, (address(x), address(x)))

    def hadamard(self, x: np.ndarray, out: np.ndarray) -> int:
        """Rows along the last axis of x."""
        n = x.shape[-1]
        rows = x.size // n
        values = (address(x), address(out), n, n**-0.5)
        return self.step(t.HADAMARD, rows, chunk_of(rows, 8 * n, POOL.threads), values)

    def add(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        """out = a + b."""
        self.step(t.ADD, out.size, 4096, (address(a), address(b), address(out)))

    def scale(self, x: np.ndarray, factor: float) -> None:
        """x *= factor, in float32."""
        self.step(t.SCALE, x.size, 4096, (address(x), address(x), factor))

    # --- caches

    def store_row(self, x: np.ndarray, rows: np.ndarray, slot: np.ndarray) -> int:
        """Row number slot[0] of ``rows`` (float32 or float16) becomes x (width,)."""
        self.keep(rows)
        rows, half = cached_rows(rows, "rows")
        return self.step(t.STORE_ROW, 1, 1, (address(x), address(rows), half, address(slot), x.size))

    def push_projection(
        self, kv: np.ndarray, gate: np.ndarray, ape: np.ndarray, state_kv: np.ndarray, state_score: np.ndarray,
        phase: np.ndarray, first: int,
    ) -> None:  # fmt: skip
        """Slot first + phase[0] of a compressor's state becomes kv and gate + ape[phase[0]] (width,)."""
        self.keep(ape, state_kv, state_score)
        values = (*map(address, (kv, gate, ape, state_kv, state_score, phase)), first, kv.size)
        self.step(t.PUSH_PROJECTION, 1, 1, values)

    def overlap(self, state: np.ndarray, out: np.ndarray) -> int:
        """state (2 ratio, 2 width) -> candidates (2 ratio, width)."""
        slots, width = out.shape
        return self.step(t.OVERLAP, slots, slots, (address(state), address(out), slots // 2, width))

    def pool(self, kv: np.ndarray, score: np.ndarray, out: np.ndarray) -> int:
        """Candidates kv, score (m, c) -> out (c,)."""
        m, c = kv.shape
        blocks = -(-c // POOL_CHANNELS)
        values = (*map(address, (kv, score, out)), m, c, POOL_CHANNELS, blocks)
        return self.step(t.POOL_ROWS, blocks, chunk_of(blocks, 4 * m * POOL_CHANNELS, POOL.threads), values)

    def close_window(self, state_kv: np.ndarray, state_score: np.ndarray, ratio: int, first: int) -> int:
        """The current window becomes the previous one (if first > 0) and empty."""
        values = (address(state_kv), address(state_score), ratio, first, state_kv.shape[1])
        return self.step(t.CLOSE_WINDOW, 1, 1, values)

    # --- attention, indexer, routing

    def attention(
        self, q: np.ndarray, raw: np.ndarray, raw_first: np.ndarray, raw_count: np.ndarray, comp: np.ndarray | None,
        comp_count: np.ndarray, selected: np.ndarray | None, sinks: np.ndarray, scale: float, out: np.ndarray,
    ) -> int:  # fmt: skip
        """q (H, hd); ``raw`` and ``comp`` are whole buffers; raw_first, raw_count and comp_count int32 (1,)."""
        H, hd = q.shape
        self.keep(raw, comp, sinks)
        group = min(HEAD_GROUP, H)
        groups = -(-H // group)
        size, half = scratch_bytes(hd), 0
        if comp is not None:
            comp, half = cached_rows(comp, "comp")
        scratch = self.array(size * POOL.threads, dtype=np.uint8)
        values = (
            *map(address, (q, raw, raw_first, raw_count)),
            0 if comp is None else address(comp), half, address(comp_count),
            0 if selected is None else address(selected), address(sinks), address(out), address(self.error),
            len(raw), 0 if comp is None else len(comp), 0 if selected is None else selected.size,
            H, hd, group, groups, address(scratch), size, scale,
        )  # fmt: skip
        return self.step(t.ATTENTION, groups, 1, values)

    def index_scores(self, iq: np.ndarray, rows: np.ndarray, w: np.ndarray, out: np.ndarray) -> int:
        """iq (H, d), ``rows`` the whole buffer, w (H,) -> out (len(rows),); patch items and n (``index_items``)."""
        H, d = iq.shape
        lanes = -(-H // INDEX_LANES) * INDEX_LANES
        packed, wide = self.array(lanes * (d + 1)), self.array(4 * d * POOL.threads)
        self.keep(rows)
        rows, half = cached_rows(rows, "rows")
        self.step(t.INDEX_PACK, 1, 1, (address(iq), address(w), address(packed), H, d))
        values = (address(packed), address(rows), half, address(out), 1, 0, H, d, INDEX_BLOCK, address(wide))
        return self.step(t.INDEX_SCORES, 0, 1, values)

    @staticmethod
    def index_items(n: int) -> int:
        """Items of an ``index_scores`` step over n rows."""
        return -(-n // INDEX_BLOCK)

    def select_rows(self, scores: np.ndarray, visible: np.ndarray, out: np.ndarray) -> None:
        """The out.size best of the first visible[0] scores."""
        self.step(t.SELECT_ROWS, 1, 1, (*map(address, (scores, visible, out)), scores.size, out.size))

    def route(
        self, logits: np.ndarray, bias: np.ndarray | None, hash_ids: np.ndarray | None, scale: float, floor: bool,
        probs: np.ndarray, ids: np.ndarray, weights: np.ndarray,
    ) -> None:  # fmt: skip
        """logits (E,) -> probs (E,), ids (K,), weights (K,)."""
        self.keep(bias)
        values = (
            address(logits), 0 if bias is None else address(bias), 0 if hash_ids is None else address(hash_ids),
            *map(address, (probs, ids, weights)), logits.size, ids.size, int(floor), scale, address(self.error),
        )  # fmt: skip
        self.step(t.ROUTE, 1, 1, values)

    def advise_experts(self, ids: np.ndarray, w: Matrix) -> None:
        """Ask the system for the pages of experts ids (K,) of ``w``, a file mapped into memory."""
        values = (address(ids), weight_address(w), w.rows * w.row_bytes, w.experts, mmap.PAGESIZE)
        self.step(t.ADVISE, ids.size, 1, values)

    def swiglu(
        self, gate: np.ndarray, up: np.ndarray, limit: float, weight: np.ndarray | None, out: np.ndarray
    ) -> None:
        """gate, up (rows, ff) -> out (rows, ff), rows times weight (rows,) if given."""
        n = gate.shape[-1]
        rows = gate.size // n
        values = (address(gate), address(up), 0 if weight is None else address(weight), address(out), n, limit)
        self.step(t.SWIGLU, rows, chunk_of(rows, 8 * n, POOL.threads), values)
