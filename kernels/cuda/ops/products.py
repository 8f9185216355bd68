"""The CUDA backend's ops for matrix products, table look-ups and routing. ``ds4ref.kernels.ops`` says what each op
computes; ``products`` has the kernels.

For few inputs a product runs as mat-vec (``matvec``; ``plain`` for weights that are not quantized), for many in tiles
on tensor cores (``matmat``). Both read inputs that were packed first; in a recording, products of the same inputs share
the packed ones.
"""

from __future__ import annotations

from ...binding import I8, I32, bind
from ...formats.matrix import Matrix
from ..driver.arrays import DeviceArray
from ..driver.launch import Launch
from ..products import embedding, grouping, limbs, matmat, matvec, packing, plain
from ..products.operands import Routing
from ..products.units import UNITS
from ..rows import quantize, routing, windows
from .steps import Steps

MANY_TOKENS = 16
"""Number of tokens from which it is faster to decode weights once per tile of tokens than to read them for each."""
PAIRS_PER_EXPERT = 4
BLOCKS = {"a8": quantize.A8_BLOCK, "q8k": quantize.Q8K_BLOCK}
"""Number of inputs that share a scale, by activation rounding."""


def worth_sorting(pairs: int, experts: int) -> bool:
    """Return whether sorting (token, expert) pairs by expert pays: whether experts have several pairs on average."""
    return PAIRS_PER_EXPERT * experts <= pairs and experts <= grouping.MOST_EXPERTS


def rounds(fmt: str, act: str) -> bool:
    """Return whether the kernels for weights of this format do this rounding of the inputs themselves."""
    return act == "float" or fmt in UNITS and act == UNITS[fmt].activation


class ProductOps(Steps):
    """The ops that multiply by weights, and those that choose experts."""

    # --- inputs

    def _inputs(self, x: DeviceArray, w: Matrix, act: str) -> tuple[DeviceArray, str]:
        """Return the inputs for the kernel of a product with ``w``, and the rounding that the kernel is to apply: if it
        does not support ``act``, the inputs are rounded here, and it gets "float"."""
        if rounds(w.fmt, act):
            return x, act
        if act not in BLOCKS:
            raise ValueError(f"unknown activation rounding {act!r}: float, a8 or q8k")
        if w.cols % BLOCKS[act]:
            raise ValueError(f"activation rounding {act} works in blocks of {BLOCKS[act]}, not on {w.cols} inputs")
        out = self.empty(*x.shape)
        if x.size:
            words, scales, _ = self._codes(x, w.cols, act)
            codes = DeviceArray(words.buffer, (x.size,), I8)
            self.go(quantize.restore, [out], [codes, scales], x.size, BLOCKS[act])
        return out, "float"

    def _codes(self, x: DeviceArray, n: int, act: str) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Quantize rows of n values to int8: return codes (four per 32-bit word), scales, and for "q8k" the sums of
        every 16 codes; for "a8" the third array has no meaning."""

        def pack() -> tuple[DeviceArray, DeviceArray, DeviceArray]:
            codes, scales = self.empty(x.size // 4, dtype=I32), self.empty(x.size // BLOCKS[act])
            if act == "a8":
                self.go(packing.pack_a8, [codes, scales], [x], x.size // n, n)
                return codes, scales, codes
            sums = self.empty(x.size // (2 * quantize.Q8K_SUM), dtype=I32)
            self.go(packing.pack_q8k, [codes, scales, sums], [x], x.size // n, n)
            return codes, scales, sums

        return self.once(x, (act, n), pack)

    def _sums(self, x: DeviceArray) -> DeviceArray:
        """Return the sum of every 16 values."""

        def add() -> DeviceArray:
            sums = self.empty(x.size // 16)
            self.go(packing.pack_sums, [sums], [x], sums.size)
            return sums

        return self.once(x, "sums", add)

    def _packed(self, x: DeviceArray, w: Matrix, act: str) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return the arrays of codes (or values), scales and sums that a mat-vec with ``w`` reads; in place of one that
        it does not read, any array."""
        if act != "float":
            return self._codes(x, w.cols, act)
        return x, x, self._sums(x) if w.fmt in UNITS and UNITS[w.fmt].minima else x

    def _limbs(self, x: DeviceArray, w: Matrix, act: str) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return the inputs x as the tensor-core kernels read them: limbs (the int8 pieces of a value, ``limbs``),
        scales and sums."""
        kind, n = matmat.weights_of(w.fmt, act).kind, w.cols
        codes, scales, sums = self._packed(x, w, act)
        count = x.size // n
        out = self.empty(count * limbs.even_units(n) * kind.limbs * 16, dtype=I32)
        if act != "float":
            self.go(limbs.pack_codes, [out], [codes], w.fmt, count, n)
            return out, scales, sums
        powers = self.empty(2 * count)
        self.go(limbs.pack, [out, powers], [x], w.fmt, kind, count, n)
        return out, powers, sums

    # --- products

    def _few(
        self, out: DeviceArray, x: DeviceArray, ids: DeviceArray | None, w: Matrix, act: str, pairs: int,
        routing: Routing,
    ) -> None:  # fmt: skip
        reads = [*self._packed(x, w, act), self.or_absent(ids, I32)]
        self.run(Launch(matvec.multiply, [out, self.error], reads, (act, pairs, routing), matrices=(w,)))

    def _many(
        self, out: DeviceArray, x: DeviceArray, tiles: list[DeviceArray], w: Matrix, act: str, count: int, groups: int,
        share: int,
    ) -> None:  # fmt: skip
        reads = [*self._limbs(x, w, act), *(tiles or [self.absent(I32)] * 4)]
        numbers = act, count, groups, share, bool(tiles)
        self.run(Launch(matmat.multiply, [out], reads, numbers, matrices=(w,)))

    @bind
    def linear(self, x, w, act, out, T):
        self._linear(x, w, act, out, T, 1)

    @bind
    def grouped_linear(self, x, w, act, out, T, G):
        self._linear(x, w, act, out, T, G)

    def _linear(self, x: DeviceArray, w: Matrix, act: str, out: DeviceArray, tokens: int, groups: int) -> None:
        x, act = self._inputs(x, w, act)
        if not out.size:
            return
        if tokens >= MANY_TOKENS:
            self._many(out, x, [], w, act, tokens, groups, 1)
        else:
            self._few(out, x, None, w, act, tokens * groups, Routing(groups=groups))

    @bind
    def hc_mix(self, X, fn, eps, out, T):
        if out.size:
            self.run(Launch(plain.hc_mix, [out], [X], (T, eps), matrices=(fn,)))

    # --- experts

    @bind
    def expert_linear(self, x, ids, w, act, out, failure):
        self._choose(x, ids, w, act, out, failure, False)

    @bind
    def expert_sum(self, mid, ids, w, act, out, failure):
        self._choose(mid, ids, w, act, out, failure, True)

    def _choose(
        self, x: DeviceArray, ids: DeviceArray, w: Matrix, act: str, out: DeviceArray, failure: str, summed: bool
    ) -> None:
        """Multiply by the matrices of experts ids (tokens, K): one input per token for all its K experts or, if
        ``summed``, one input per (token, expert) pair, adding the K results in the order of ids."""
        x, act = self._inputs(x, w, act)
        if not out.size:
            return
        (tokens, K), code = ids.shape, self.failure(failure)
        if not worth_sorting(ids.size, w.experts):
            pairs, slots, share = (tokens, K, 1) if summed else (ids.size, 1, K)
            self._few(out, x, ids, w, act, pairs, Routing(experts=w.experts, slots=slots, share=share, failure=code))
            return
        parts = self.empty(ids.size, w.rows) if summed else out
        self._many(parts, x, self._tiles(ids, w.experts, code), w, act, 0, 1, 1 if summed else K)
        if summed:
            self.go(grouping.add_slots, [out], [parts], out.size, K, w.rows)

    def _tiles(self, ids: DeviceArray, experts: int, code: int) -> list[DeviceArray]:
        """Sort (token, expert) pairs by expert and divide them into tiles of one expert each (``grouping``): return the
        order of the pairs, and the expert, start and size of each tile. ``code`` is that of a failure."""
        pairs = ids.size
        count = min(pairs, experts) + pairs // grouping.TILE
        out = [self.empty(pairs, dtype=I32), *(self.empty(count, dtype=I32) for _ in range(3))]
        self.go(grouping.sort, [*out, self.error], [ids], pairs, experts, count, code)
        return out

    @bind
    def advise(self, ids, w, E, failure):
        if ids.size:  # weights are not moved between memories, so there is nothing to prefetch; only check the ids
            self.go(routing.check_ids, [self.error], [ids], ids.size, E, self.failure(failure))

    # --- table look-ups

    @bind
    def embed(self, table, ids, out, T, failure):
        if out.size:
            numbers = T, self.failure(failure)
            self.run(Launch(embedding.look_up, [out, self.error], [ids], numbers, matrices=(table,)))

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
            [logits, self.or_absent(bias), self.or_absent(hash_ids, I32)],
            T, E, k, scale, bool(floor), bias is not None, hash_ids is not None, self.failure(failure),
        )  # fmt: skip

    @bind
    def count(self, ids, counts, E):
        if ids.size:
            self.go(routing.count, [counts], [ids], ids.size, E)

    @bind
    def geglu(self, gate, up, out):
        self.go(routing.geglu, [out], [gate, up], out.size)

    @bind
    def swiglu(self, gate, up, limit, weight, out, n):
        self.go(
            routing.swiglu, [out], [gate, up, self.or_absent(weight)], out.size, n, float(limit), weight is not None
        )
