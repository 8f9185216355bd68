"""The row kernel of IQ2_XXS for Q8_K inputs in tier A, which decodes ahead; ``iq2_xxs`` explains blocks, packed inputs
and lanes.

Looking up the codes of two blocks and multiplying them are two long chains of operations. A core does not look far
enough ahead to run the one for the next blocks beside the other, so their operations are emitted in turns: those that
``codes`` yields for the next two blocks and those that ``_products`` yields for the two before.

The seven signs of an octet stay where a byte shift puts them, and the codes of weights 0-1, 2-3 and 4-5 lie at the bits
left free by the signs that belong to them. That takes fewer operations than ``iq2_xxs.decode_two``, and more tables.
Measured on Intel (Emerald Rapids) alone, not on Zen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba import njit, types

from . import x86
from .helpers import prefetch_lines
from .iq2_xxs import BLOCK, CODES, PACKED_TWO, biased, codes, pack_q8k, run
from .row_kernel import LANES_16, Inputs, RowKernel, for_counts, records
from .vec import JIT, F32x16, I8x64, I32x16, I64x8, Int, Val, inline, several

_LOW_BYTES = (CODES[:, :4] << [2, 4, 0, 6]).sum(axis=1)
_STATE = 4  # vectors from ``codes`` to _products: low and high codes, signs, scales


def _planes(k, low: Val, high: Val, signs: Val) -> Iterator[Val | None]:
    """Yield the eight planes of 64 unsigned bytes 43 + w, and None after the operations between."""
    for pair in range(4):
        codes, pair_signs = (low, low, high, high)[pair], signs
        if pair == 1:
            codes = x86.bit_matrix(k, low, [[0], [1], [], [], [6], [7], [], []])
            yield None
        if pair == 3:
            codes = (high.bits(I64x8) >> 4).bits(I8x64)
            yield None
            pair_signs = x86.bit_matrix(k, signs, [[], [], [], [], [6], list(range(7)), [], []])
            yield None
        mask = (0x03, 0x0C, 0x30, 0x30)[pair]
        mixed = (codes & (mask ^ 0xFF)) | (pair_signs & mask)
        yield None
        for place in (((2, 0), (4, 1)), ((0, 2), (4, 3)), ((0, 4), (2, 5)), ((0, 4), (2, 5)))[pair]:
            yield x86.permute_bytes(k, k.const(I8x64, biased(*place)), mixed)


def _products(k, totals: list[Val], state: list[Val], inputs: list[Val], out: list[Val]) -> Iterator[None]:
    """Multiply two blocks by each input; ``out`` receives the totals with the lane sums added."""
    low, high, signs = (part.bits(I8x64) for part in state[:3])
    chains = [[k.load(I32x16, x + 576), k.zero(I32x16)] for x in inputs]  # two, to hide the latency
    number = 0
    for plane in _planes(k, low, high, signs):
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
        run(codes(k, w, w + BLOCK, True, state, _LOW_BYTES))
        return joined([k.zero(I32x16)] * count + state)

    @inline(vectors, vectors, Int, addresses)
    def step(k, now, w, xs):
        """Multiply the two decoded blocks by the inputs at ``xs``, and decode the two at ``w``."""
        parts = k.members(now)
        totals: list[Val] = []
        state: list[Val] = []
        products = _products(k, parts[:count], parts[count:], k.members(xs), totals)
        run(codes(k, w, w + BLOCK, True, state, _LOW_BYTES), products)
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
        run(codes(k, w, w, False, state, _LOW_BYTES))
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
