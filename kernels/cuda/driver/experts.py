"""Experts fetched on demand, where not all of them fit into device memory: every stack has a cache of slots.

Dense weights are always resident. Of each stack (one matrix of all experts of a layer) as many experts are resident as
fit; the rest stay in the mapped file. ``ensure`` fetches the missing ones of the chosen experts into the slots of the
least used (``hot``, which fades), through pinned memory on a stream of its own, while the shared expert is computed.
The host reads the chosen ids for that, so a token waits for the device once a layer and is not recorded. This is for
models that would not run at all otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import DeviceArray
from .grids import blocks_for, threads_for
from .memory import Buffer
from .shim import cuda

FADING = 0.98
"""Factor of the use counts of a stack's experts at each use of the stack."""


class CachedStack(DeviceArray):
    """A stack with ``slots`` of its experts in device memory. ``shape`` is that of the whole stack, ``flat`` are the
    slots."""

    def __init__(self, source: np.ndarray, buffer: Buffer, slots: int):
        super().__init__(buffer, source.shape, np.uint8)
        self.source, self.slots = source, slots
        self.slot_of = np.full(len(source), -1, np.int32)
        self.expert_in = np.full(slots, -1, np.int32)
        self.hot = np.zeros(len(source))
        self.misses = self.hits = 0

    def flat(self) -> Any:
        if self._flat is None:
            self._flat = self.shaped((self.slots * self.source[0].nbytes,))
        return self._flat

    def ensure(self, experts: np.ndarray, driver: Any) -> None:
        """Begin to fetch the missing ones of ``experts`` (distinct, at most ``slots``). Call ``driver.await_copies``
        before their use; no running kernel may read the slots that are overwritten."""
        self.hot *= FADING
        self.hot[experts] += 1
        missing = experts[self.slot_of[experts] < 0]
        self.misses, self.hits = self.misses + len(missing), self.hits + len(experts) - len(missing)
        if not len(missing):
            return
        heat = np.where(self.expert_in < 0, -1.0, self.hot[self.expert_in])
        heat[self.slot_of[experts[self.slot_of[experts] >= 0]]] = np.inf  # wanted now
        for expert, slot in zip(missing, np.argsort(heat, kind="stable"), strict=False):
            old = self.expert_in[slot]
            if old >= 0:
                self.slot_of[old] = -1
            self.slot_of[expert], self.expert_in[slot] = slot, expert
            size = self.source[0].nbytes
            assert self.buffer.block is not None
            driver.begin_copy(self.buffer.block, self.buffer.start + int(slot) * size, self.source[expert])


def groups(ids: np.ndarray, slots: int) -> list[np.ndarray]:
    """Distinct experts of ``ids``, ascending, in groups of at most ``slots``."""
    used = np.unique(ids)
    return [used[i : i + slots] for i in range(0, len(used), slots)]


@cuda.jit
def gather_kernel(out, x, rows, size, n):
    """Thread: values of the result, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[rows[i // n] * n + i % n]


def gather(stream, out, x, rows, count, n):
    """out[i] = x[rows[i]], ``count`` rows of n values."""
    threads = threads_for(count * n, 256, 1)
    gather_kernel[blocks_for(count * n, threads), threads, stream](out, x, rows, count * n, n)


@cuda.jit
def scatter_kernel(out, x, rows, size, n):
    """Thread: values of x, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[rows[i // n] * n + i % n] = x[i]


def scatter(stream, out, x, rows, count, n):
    """out[rows[i]] = x[i], ``count`` rows of n values."""
    threads = threads_for(count * n, 256, 1)
    scatter_kernel[blocks_for(count * n, threads), threads, stream](out, x, rows, count * n, n)


@cuda.jit
def sum_kernel(out, parts, size, slots, n):
    """Thread: values of the result, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        total = np.float32(0)
        for k in range(slots):
            total += parts[(i // n * slots + k) * n + i % n]
        out[i] = total


def sum_slots(stream, out, parts, tokens, slots, n):
    """Add parts (tokens, slots, n) in slot order -> out (tokens, n)."""
    threads = threads_for(tokens * n, 256, 1)
    sum_kernel[blocks_for(tokens * n, threads), threads, stream](out, parts, tokens * n, slots, n)
