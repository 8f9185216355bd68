"""Rows on their way into caches, and windows out of them. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .abi import Step
from .sizes import POOL_CHANNELS
from .steps import Steps, expect


class CacheOps(Steps):
    """Storing, position bias, compression windows and their pooling."""

    def store_rows(self, x: np.ndarray, rows: np.ndarray, at: np.ndarray) -> None:
        x, at = self.f32(x, "x"), self.position(at, "at")
        expect(x.ndim == rows.ndim == 2 and x.shape[1] == rows.shape[1], "store_rows", x.shape, rows.shape)
        expect(len(rows) > 0 and rows.flags.c_contiguous, "store_rows needs whole rows to write to", rows.shape)
        rows, half = self.cached(rows, "rows")
        values = (*map(self.at, (x, rows, at)), *x.shape, len(rows), half)
        items = min(len(x), len(rows))
        self.run([Step(t.STORE_ROWS, items, self.chunk(items, x.shape[1]), values)])

    def position_bias(self, gate: np.ndarray, ape: np.ndarray, at: np.ndarray) -> np.ndarray:
        gate, ape, at = self.f32(gate, "gate"), self.f32(ape, "ape"), self.position(at, "at")
        expect(gate.ndim == ape.ndim == 2 and gate.shape[1] == ape.shape[1], "position_bias", gate.shape, ape.shape)
        out = self.empty(*gate.shape)
        values = (*map(self.at, (gate, ape, out, at)), *ape.shape)
        self.run([Step(t.POSITION_BIAS, len(gate), self.chunk(len(gate), gate.shape[1]), values)])
        return out

    def windows(
        self, ring: np.ndarray, new: np.ndarray, at: np.ndarray, count: int, ratio: int, overlap: bool
    ) -> np.ndarray:
        ring, new, at = self.f32(ring, "ring"), self.f32(new, "new"), self.position(at, "at")
        expect(ring.ndim == new.ndim == 2 and ring.shape[1] == new.shape[1], "windows", ring.shape, new.shape)
        slots, width = ratio, ring.shape[1]
        if overlap:
            expect(width % 2 == 0, "windows that overlap have two halves", ring.shape)
            slots, width = 2 * ratio, width // 2
        expect(len(ring) >= slots and 0 < count <= len(new) // ratio + 1, "windows", ring.shape, new.shape, count)
        out = self.empty(count, slots, width)
        values = (*map(self.at, (ring, new, out, at)), len(ring), len(new), ratio, width, int(overlap))
        self.run([Step(t.WINDOWS, count * slots, self.chunk(count * slots, width), values)])
        return out

    def pool(self, kv: np.ndarray, score: np.ndarray) -> np.ndarray:
        kv, score = self.f32(kv, "kv"), self.f32(score, "score")
        expect(kv.ndim == 3 and kv.shape == score.shape, "pool", kv.shape, score.shape)
        n, m, c = kv.shape
        out, blocks = self.empty(n, c), -(-c // POOL_CHANNELS)
        values = (*map(self.at, (kv, score, out)), m, c, blocks)
        self.run([Step(t.POOL_ROWS, n * blocks, self.chunk(n * blocks, 4 * m * POOL_CHANNELS), values)])
        return out
