"""Routing and the expert nonlinearity. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .abi import Step
from .steps import I64, Steps, expect


class RoutingOps(Steps):
    """Which experts, and what happens between their products."""

    def route(
        self,
        logits: np.ndarray,
        bias: np.ndarray | None,
        hash_ids: np.ndarray | None,
        k: int,
        scale: float,
        floor: bool,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        logits = self.f32(logits, "logits")
        tokens, experts = logits.shape
        expect(0 < k <= experts, f"route to {k} experts", logits.shape)
        if bias is not None:
            bias = self.f32(bias, "bias")
            expect(bias.shape == (experts,), "route", logits.shape, bias.shape)
        if hash_ids is not None:
            hash_ids = self.i32(hash_ids, "hash_ids")
            expect(hash_ids.shape == (tokens, k), "route", logits.shape, hash_ids.shape)
        probs, ids, weights = self.empty(tokens, experts), self.empty(tokens, k, dtype=np.int32), self.empty(tokens, k)
        values = (*map(self.at, (logits, bias, hash_ids, probs, ids, weights)), experts, k, int(floor), scale)
        failure = f"route: a hash id lies outside 0..{experts - 1}"
        self.run([Step(t.ROUTE, tokens, self.chunk(tokens, (k + 16) * experts), values)], failure)
        return probs, ids, weights

    def count(self, ids: np.ndarray, counts: np.ndarray) -> None:
        ids = self.i32(ids, "ids")
        expect(counts.ndim == 1 and counts.flags.c_contiguous, "count needs whole counts to write to", counts.shape)
        counts = self._typed(counts, I64, "counts")
        self.run([Step(t.COUNT, ids.size, max(1, ids.size), (self.at(ids), self.at(counts), len(counts)))])

    def swiglu(self, gate: np.ndarray, up: np.ndarray, limit: float, weight: np.ndarray | None = None) -> np.ndarray:
        gate, up = self.f32(gate, "gate"), self.f32(up, "up")
        expect(gate.shape == up.shape, "swiglu", gate.shape, up.shape)
        if weight is not None:
            weight = self.f32(weight, "weight")
            expect(weight.shape == gate.shape[:-1], "swiglu", gate.shape, weight.shape)
        n = gate.shape[-1]
        out, rows = self.empty(*gate.shape), gate.size // n
        values = (*map(self.at, (gate, up, weight, out)), n, limit)
        self.run([Step(t.SWIGLU, rows, self.chunk(rows, 8 * n), values)])
        return out
