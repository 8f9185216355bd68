"""Matrix products, looking up, routing. What each op computes: ``ds4ref.kernels.ops``; how: ``products``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...binding import I8, I32, I64, bind
from ...formats.matrix import Matrix
from ..driver import experts
from ..driver.arrays import DeviceArray
from ..driver.experts import SplitStack
from ..driver.launch import Launch
from ..products import dispatch, packing, tiling
from ..rows import quantize, routing, windows
from .rows import in_words
from .steps import Steps


def _many(ids: DeviceArray, experts: int) -> bool:
    """Whether each expert that is read serves several of the tokens ids (tokens, K): too much for a mat-vec from host
    memory, which reads it for each."""
    return ids.shape[0] >= dispatch.MANY_TOKENS or dispatch.worth_sorting(ids.size, experts)


class ProductOps(Steps):
    """Everything that multiplies with weights, and what chooses them."""

    def _multiply(self, function: Any, out: DeviceArray, reads: list[DeviceArray], w: Matrix, *numbers: Any) -> None:
        if out.size:
            self.run(Launch(function, [out], reads, numbers, matrices=(w,)))

    def _inputs(self, x: DeviceArray, w: Matrix, act: str) -> tuple[DeviceArray, str]:
        """Return the inputs of a product and the rounding its kernel applies: where none does, round them here."""
        if dispatch.rounds(w.fmt, act):
            return x, act
        if act not in ("a8", "q8k"):
            raise ValueError(f"unknown activation rounding {act!r}: float, a8 or q8k")
        block = quantize.A8_BLOCK if act == "a8" else quantize.Q8K_BLOCK
        if w.cols % block:
            raise ValueError(f"activation rounding {act} works in blocks of {block}, not on {w.cols} inputs")
        out = self.empty(*x.shape)
        if x.size:
            codes, scales = self.empty(x.size, dtype=I8), self.empty(x.size // block)
            if act == "a8":
                self.go(packing.pack_a8, [in_words(codes), scales], [x], 1, x.size)
            else:
                sums = self.empty(x.size // (2 * quantize.Q8K_SUM), dtype=I32)
                self.go(packing.pack_q8k, [in_words(codes), scales, sums], [x], 1, x.size)
            self.go(quantize.restore, [out], [codes, scales], x.size, block)
        return out, "float"

    @bind
    def linear(self, x, w, act, out, T):
        x, act = self._inputs(x, w, act)
        self._multiply(dispatch.linear, out, [x], w, T, 1, act)

    @bind
    def grouped_linear(self, x, w, act, out, T, G):
        x, act = self._inputs(x, w, act)
        self._multiply(dispatch.linear, out, [x], w, T, G, act)

    @bind
    def hc_mix(self, X, fn, eps, out, T):
        self._multiply(dispatch.hc_mix, out, [X], fn, T, eps)

    # --- experts

    @bind
    def expert_linear(self, x, ids, w, act, out, failure):
        x, act = self._inputs(x, w, act)
        self._choose(dispatch.expert_linear, out, x, ids, w, act, failure)

    @bind
    def expert_sum(self, mid, ids, w, act, out, failure):
        mid, act = self._inputs(mid, w, act)
        self._choose(dispatch.expert_sum, out, mid, ids, w, act, failure)

    def _choose(
        self, function: Any, out: DeviceArray, x: DeviceArray, ids: DeviceArray, w: Matrix, act: str, failure: str
    ) -> None:
        """Multiply with the experts ``ids`` (tokens, K) of a stack."""
        if not out.size:
            return
        if isinstance(w.data, SplitStack) and _many(ids, w.experts):
            return self._choose_by_portions(function, out, x, ids, w, act)
        numbers = *ids.shape, w.experts, act, self.failure(failure)
        self.run(Launch(function, [out, self.error], [x, ids], numbers, matrices=(w,)))

    def _choose_by_portions(
        self, function: Any, out: DeviceArray, x: DeviceArray, ids: DeviceArray, w: Matrix, act: str
    ) -> None:
        """The same for many tokens where not all experts are on the device: portion by portion, the inputs of its
        pairs gathered and its results put back."""
        (tokens, K), n, rows = ids.shape, w.cols, w.rows
        stack: Any = w.data
        chosen, summed = self.host(ids).ravel(), function is dispatch.expert_sum
        if chosen.min() < 0 or chosen.max() >= w.experts:
            raise IndexError(f"an expert id lies outside 0..{w.experts - 1}")
        pairs = self.empty(tokens, K, rows) if summed else out
        for first, data in experts.portions(stack, chosen, self):
            some = np.flatnonzero((chosen >= first) & (chosen < first + len(data))).astype(np.int32)
            if not len(some):
                continue
            inputs, results = self.empty(len(some), n), self.empty(len(some), 1, rows)
            source = self.moved(some if summed else some // np.int32(K))
            self.go(experts.gather, [inputs], [x, source], inputs.size, n)
            there: Any = data
            matrices, numbers = (Matrix(w.fmt, there, rows, n),), (len(some), 1, len(data), act, 0)
            reads = [inputs, self.moved(chosen[some][:, None] - np.int32(first))]
            self.run(Launch(dispatch.expert_linear, [results, self.error], reads, numbers, matrices=matrices))
            self.go(experts.scatter, [pairs], [results, self.moved(some)], results.size, rows)
        if summed:
            self.go(tiling.add_slots, [out], [pairs], out.size, K, rows)

    @bind
    def advise(self, ids, w, E, failure):
        if ids.size:  # weights are where they stay, so nothing else is to be done
            self.go(routing.check_ids, [self.error], [ids], ids.size, E, self.failure(failure))

    # --- looking up

    @bind
    def embed(self, table, ids, out, T, failure):
        if out.size:
            numbers = T, self.failure(failure)
            self.run(Launch(dispatch.embed, [out, self.error], [ids], numbers, matrices=(table,)))

    @bind
    def take_rows(self, table, ids, out, T, V, K, failure):
        self.go(windows.take_rows, [out, self.error], [table, ids], out.size, K, V, self.failure(failure))

    # --- routing

    @bind
    def route(self, logits, bias, hash_ids, k, scale, floor, probs, ids, weights, T, E, failure):
        if k > routing.MOST_CHOSEN:
            raise ValueError(f"route to more than {routing.MOST_CHOSEN} experts: {k}")
        self.go(
            routing.route, [probs, ids, weights, self.error],
            [logits, self.or_absent(bias), self.or_absent(hash_ids, I32), self.absent(I64)],
            T, E, k, scale, bool(floor), bias is not None, hash_ids is not None, self.failure(failure),
        )  # fmt: skip

    @bind
    def count(self, ids, counts, E):
        if ids.size:
            self.go(routing.count, [counts], [ids], ids.size, E)

    @bind
    def geglu(self, gate, up, out):
        if out.size:
            self.go(routing.geglu, [out], [gate, up], out.size)

    @bind
    def swiglu(self, gate, up, limit, weight, out, n):
        if n:
            numbers = out.size // n, n, limit, weight is not None
            self.go(routing.swiglu, [out], [gate, up, self.or_absent(weight)], *numbers)
