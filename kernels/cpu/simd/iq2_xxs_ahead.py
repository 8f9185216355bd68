"""IQ2_XXS rows times Q8_K activations in tier A, decoding ahead; blocks, packed inputs and lanes: ``iq2_xxs``.

Looking up the codes of two blocks and multiplying them are two long chains of operations. A core does not look far
enough ahead to run the one for the next blocks beside the other, so their operations are emitted in turns: those that
``codes`` yields for the next two blocks and those that ``_products`` yields for the two before.

Measured on Intel (Emerald Rapids) alone, not on Zen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba import njit, types

from . import x86
from .helpers import prefetch_lines
from .iq2_xxs import BLOCK, PACKED_TWO, codes, pack_q8k, planes, run
from .row_kernel import LANES_16, Inputs, RowKernel, for_counts, records
from .vec import JIT, F32x16, I8x64, I32x16, Int, Val, inline, several

_STATE = 4  # vectors from ``codes`` to _products: low and high codes, signs, scales


def _products(k, totals: list[Val], state: list[Val], inputs: list[Val], out: list[Val]) -> Iterator[None]:
    """Multiply two blocks by each input; ``out`` receives the totals with the lane sums added."""
    low, high, signs = (part.bits(I8x64) for part in state[:3])
    chains = [[k.load(I32x16, x + 576), k.zero(I32x16)] for x in inputs]  # two, to hide the latency
    number = 0
    for plane in planes(k, low, high, signs):
        if plane is not None:
            for chain, x in zip(chains, inputs, strict=True):
                chain[number & 1] = x86.dpbusd_512(k, chain[number & 1], plane, k.load(I8x64, x + 64 * number))
            number += 1
        yield
    for total, (even, odd), x in zip(totals, chains, inputs, strict=True):
        dots = (even + odd).to_float(F32x16)
        yield
        out.append(k.fma(dots, state[3].bits(F32x16) * k.load(F32x16, x + 512), total.bits(F32x16)))
        yield


def _steps(count: int) -> tuple[Any, Any, Any, Any]:
    """Make the inlined functions of a row with ``count`` inputs: begin, step, finish, add_last."""
    addresses, sums = types.UniTuple(Int, count), types.UniTuple(F32x16, count)
    vectors = types.UniTuple(I32x16, count + _STATE)  # the totals and the state

    def joined(parts: list[Val]) -> tuple[Val, ...]:
        return tuple(part.bits(I32x16) for part in parts)

    @inline(vectors, Int)
    def begin(k, w):
        """Decode the first two blocks of a row."""
        state: list[Val] = []
        run(codes(k, w, w + BLOCK, True, state))
        return joined([k.zero(I32x16)] * count + state)

    @inline(vectors, vectors, Int, addresses)
    def step(k, now, w, xs):
        """Multiply the two decoded blocks by the inputs at ``xs``, and decode the two at ``w``."""
        parts = k.members(now)
        totals: list[Val] = []
        state: list[Val] = []
        products = _products(k, parts[:count], parts[count:], k.members(xs), totals)
        run(codes(k, w, w + BLOCK, True, state), products)
        return joined(totals + state)

    @inline(sums, vectors, addresses)
    def finish(k, now, xs):
        """Multiply the last two decoded blocks of a row."""
        parts = k.members(now)
        totals: list[Val] = []
        run(_products(k, parts[:count], parts[count:], k.members(xs), totals))
        return tuple(totals)

    @inline(sums, sums, Int, addresses)
    def add_last(k, totals, w, xs):
        """Add one block, processed twice; the second half of its inputs is packed as zeros."""
        state: list[Val] = []
        run(codes(k, w, w, False, state))
        results: list[Val] = []
        run(_products(k, k.members(totals), state, k.members(xs), results))
        return tuple(results)

    return begin, step, finish, add_last


def _rows(count: int, inputs: Inputs) -> Any:
    buffers, outs, forward, store = inputs
    begin, step, finish, add_last = _steps(count)
    zero, total = several(LANES_16.zero, count), several(LANES_16.total, count)
    fetch_ahead = prefetch_lines(2)

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, table):
        start, out = buffers(table), outs(table)
        for row in range(first, last):
            w = weights + row * row_bytes
            x = start
            if n < 512:
                sums = zero()
            else:
                now = begin(w)
                for _ in range((n >> 9) - 1):
                    fetch_ahead(w)
                    w += 2 * BLOCK
                    now = step(now, w, x)
                    x = forward(x, PACKED_TWO)
                fetch_ahead(w)
                w += 2 * BLOCK
                sums = finish(now, x)
                x = forward(x, PACKED_TWO)
            if n & 256:
                sums = add_last(sums, w, x)
            store(forward(out, 4 * row), total(sums))

    return rows


Q8K = RowKernel(pack_q8k, for_counts(_rows), records(512, PACKED_TWO))
