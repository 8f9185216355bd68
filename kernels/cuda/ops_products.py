"""Matrix products, looking up, routing. What each op computes: ``kernels.ops``; how: ``products``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formats import FORMATS
from ..formats.matrix import Matrix
from . import experts, products, routing, windows
from .arrays import DeviceArray
from .experts import CachedStack
from .steps import I32, I64, Launch, Steps, expect


def on_device(w: Matrix) -> Matrix:
    """``w`` itself. TypeError if it was not placed, ValueError if its bytes do not fit."""
    data: Any = w.data
    if not isinstance(data, DeviceArray):
        raise TypeError("weights must be placed on the device")
    expect(data.shape[-2:] == (w.rows, FORMATS[w.fmt].row_bytes(w.cols)), "weights", data.shape, w.fmt, w.cols)
    return w


class ProductOps(Steps):
    """Everything that multiplies with weights, and what chooses them."""

    def _multiply(self, function: Any, out: DeviceArray, reads: list[DeviceArray], w: Matrix, *numbers: Any) -> None:
        if out.size:
            self.run(Launch(function, [out], reads, numbers, matrices=(on_device(w),)))

    def _choose(self, function: Any, out: DeviceArray, x: DeviceArray, ids: DeviceArray, w: Matrix, act: str) -> None:
        """A product with experts ``ids`` (tokens, K) of a stack."""
        if out.size and isinstance(w.data, CachedStack):
            self._choose_cached(function, out, x, ids, w, w.data, act)
        elif out.size:
            code = self.failure(f"an expert id lies outside 0..{w.experts - 1}")
            numbers = *ids.shape, w.experts, act, code
            self.run(Launch(function, [out, self.error], [x, ids], numbers, matrices=(on_device(w),)))

    def linear(self, x: Any, w: Matrix, act: str = "float") -> Any:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] == w.cols and not w.experts, "linear", x.shape, w.data.shape, w.cols)
        products.check_act(w.fmt, act)
        out = self.empty(len(x), w.rows)
        self._multiply(products.linear, out, [x], w, len(x), 1, act)
        return out

    def grouped_linear(self, x: Any, w: Matrix, act: str = "float") -> Any:
        x = self.f32(x, "x")
        fits = x.ndim == 3 and x.shape[2] == w.cols and w.rows % x.shape[1] == 0 and not w.experts
        expect(fits, "grouped_linear", x.shape, w.data.shape)
        products.check_act(w.fmt, act)
        out = self.empty(len(x), w.rows)
        self._multiply(products.linear, out, [x], w, len(x), x.shape[1], act)
        return out

    def hc_mix(self, X: Any, fn: Matrix, eps: float) -> Any:
        X = self.f32(X, "X")
        expect(X.ndim == 3 and X.shape[1] * X.shape[2] == fn.cols, "hc_mix", X.shape, fn.cols)
        products.check_act(fn.fmt, "float")
        out = self.empty(len(X), fn.rows)
        self._multiply(products.hc_mix, out, [X], fn, len(X), eps)
        return out

    def _choose_cached(
        self, function: Any, out: DeviceArray, x: DeviceArray, ids: DeviceArray, w: Matrix, stack: CachedStack, act: str
    ) -> None:
        """The same where not all experts are resident: by slots if those wanted are at a time, else group by group, the
        inputs of a group's pairs gathered and its results put back."""
        chosen = self.seen_ids(ids, w.experts)
        parts, summed = experts.groups(chosen, stack.slots), function is products.expert_sum
        if len(parts) == 1:
            self.make_resident(stack, parts[0], wait=False)
            where = self.moved(stack.slot_of[chosen])
            numbers = *ids.shape, stack.slots, act, 0
            return self.run(Launch(function, [out, self.error], [x, where], numbers, matrices=(w,)))
        tokens, K = ids.shape
        n, rows = w.cols, w.rows
        pairs = self.empty(tokens, K, rows) if summed else out
        for part in parts:
            self.make_resident(stack, part, wait=True)
            some = np.flatnonzero(np.isin(chosen, part)).astype(np.int32)
            inputs, results = self.empty(len(some), n), self.empty(len(some), 1, rows)
            source = self.moved(some if summed else some // np.int32(K))
            self.go(experts.gather, [inputs], [x, source], len(some), n)
            where = self.moved(stack.slot_of[chosen.ravel()[some]][:, None])
            numbers = len(some), 1, stack.slots, act, 0
            reads = [inputs, where]
            self.run(Launch(products.expert_linear, [results, self.error], reads, numbers, matrices=(w,)))
            self.go(experts.scatter, [pairs], [results, self.moved(some)], len(some), rows)
        if summed:
            self.go(experts.sum_slots, [out], [pairs], tokens, K, rows)

    # --- experts

    def expert_linear(self, x: Any, ids: Any, w: Matrix, act: str = "float") -> Any:
        x, ids = self.f32(x, "x"), self.i32(ids, "ids")
        fits = x.ndim == 2 and x.shape[1] == w.cols and ids.shape[:1] == x.shape[:1]
        expect(fits, "expert_linear", x.shape, ids.shape)
        expect(w.experts > 0 and ids.ndim == 2, "expert_linear needs a stack", w.data.shape)
        products.check_act(w.fmt, act)
        out = self.empty(*ids.shape, w.rows)
        self._choose(products.expert_linear, out, x, ids, w, act)
        return out

    def expert_sum(self, mid: Any, ids: Any, w: Matrix, act: str = "float") -> Any:
        mid, ids = self.f32(mid, "mid"), self.i32(ids, "ids")
        fits = mid.ndim == 3 and mid.shape[2] == w.cols and mid.shape[:2] == ids.shape
        expect(fits, "expert_sum", mid.shape, ids.shape)
        expect(w.experts > 0, "expert_sum needs a stack", w.data.shape)
        products.check_act(w.fmt, act)
        out = self.empty(len(ids), w.rows)
        self._choose(products.expert_sum, out, mid, ids, w, act)
        return out

    def advise(self, ids: Any, w: Matrix) -> None:
        ids = self.i32(ids, "ids")
        expect(w.experts > 0, "advise needs a stack", w.data.shape)
        if isinstance(w.data, CachedStack):
            wanted = experts.groups(self.seen_ids(ids, w.experts), w.data.slots)
            if len(wanted) == 1:  # more than fit would push each other out
                self.make_resident(w.data, wanted[0], wait=False)
        elif ids.size:  # weights are on the device already, so nothing else is to be done
            code = self.failure(f"an expert id lies outside 0..{w.experts - 1}")
            self.go(routing.check_ids, [self.error], [ids], ids.size, w.experts, code)

    # --- looking up

    def embed(self, table: Matrix, ids: Any) -> Any:
        ids = self.i32(ids, "ids")
        expect(ids.ndim == 1 and not table.experts, "embed", ids.shape, table.data.shape)
        products.check_act(table.fmt, "float")
        out = self.empty(len(ids), table.cols)
        if out.size:
            code = self.failure(f"a row lies outside 0..{table.rows - 1}")
            numbers = len(ids), code
            self.run(Launch(products.embed, [out, self.error], [ids], numbers, matrices=(on_device(table),)))
        return out

    def take_rows(self, table: Any, ids: Any) -> Any:
        table, ids = self.i32(table, "table"), self.i32(ids, "ids")
        expect(table.ndim == 2 and ids.ndim == 1, "take_rows", table.shape, ids.shape)
        out = self.empty(len(ids), table.shape[1], dtype=I32)
        if out.size:
            code = self.failure(f"a row lies outside 0..{len(table) - 1}")
            numbers = len(ids), table.shape[1], len(table), code
            self.go(windows.take_rows, [out, self.error], [table, ids], *numbers)
        return out

    # --- routing

    def route(self, logits: Any, bias: Any, hash_ids: Any, k: int, scale: float, floor: bool) -> Any:
        logits = self.f32(logits, "logits")
        tokens, E = logits.shape
        expect(0 < k <= E, f"route to {k} experts", logits.shape)
        if bias is not None:
            bias = self.f32(bias, "bias")
            expect(bias.shape == (E,), "route", logits.shape, bias.shape)
        if hash_ids is not None:
            hash_ids = self.i32(hash_ids, "hash_ids")
            expect(hash_ids.shape == (tokens, k), "route", logits.shape, hash_ids.shape)
        probs, ids, weights = self.empty(tokens, E), self.empty(tokens, k, dtype=I32), self.empty(tokens, k)
        if tokens:
            code = self.failure(f"route: a hash id lies outside 0..{E - 1}")
            self.go(
                routing.route, [probs, ids, weights, self.error],
                [logits, self.or_absent(bias), self.or_absent(hash_ids, I32)],
                tokens, E, k, scale, bool(floor), bias is not None, hash_ids is not None, code,
            )  # fmt: skip
        return probs, ids, weights

    def count(self, ids: Any, counts: Any) -> None:
        ids = self.i32(ids, "ids")
        expect(counts.ndim == 1, "count needs whole counts to write to", counts.shape)
        counts = self.written(counts, I64, "counts")
        if ids.size:
            self.go(routing.count, [counts], [ids], ids.size, len(counts))

    def swiglu(self, gate: Any, up: Any, limit: float, weight: Any = None) -> Any:
        gate, up = self.f32(gate, "gate"), self.f32(up, "up")
        expect(gate.shape == up.shape, "swiglu", gate.shape, up.shape)
        if weight is not None:
            weight = self.f32(weight, "weight")
            expect(weight.shape == gate.shape[:-1], "swiglu", gate.shape, weight.shape)
        out, n = self.empty(*gate.shape), gate.shape[-1]
        if out.size:
            numbers = out.size // n, n, limit, weight is not None
            self.go(routing.swiglu, [out], [gate, up, self.or_absent(weight)], *numbers)
        return out
