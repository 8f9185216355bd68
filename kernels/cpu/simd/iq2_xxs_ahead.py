"""IQ2_XXS rows times Q8_K activations in tier A, decoding ahead; blocks, packed inputs and lanes: ``iq2_xxs``.

Looking up the codes of two blocks and multiplying them are two long chains of operations. A core does not look far
enough ahead to run the one for the next blocks beside the other, so their operations are emitted in turns: those that
``_codes`` yields for the next two blocks and those that ``_products`` yields for the two before.

The look-up differs from that of ``iq2_xxs`` in where codes lie: the seven signs of an octet stay where a byte shift
puts them, and the codes of weights 0-1, 2-3 and 4-5 lie at the bits left free by the signs that belong to them.
Measured on Intel (Emerald Rapids) alone, not on Zen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from numba import njit, types

from . import x86
from .helpers import prefetch_lines
from .iq2_xxs import BLOCK, CODES, PACKED_TWO, SIGN_STARTS, alternating_words, biased, group_scales, pack_q8k
from .iq2_xxs import both_d as d_of_distant
from .row_kernel import LANES_16, Inputs, RowKernel, for_counts, records
from .tiers import WIDE_PERMUTES
from .vec import JIT, F32x16, I8x64, I16x16, I32x8, I32x16, I64x8, Int, Val, inline, several

_LOW_BYTES = (CODES[:, :4] << [2, 4, 0, 6]).sum(axis=1)
_HIGH_BYTES = (CODES[:, 4:] << [0, 2, 4, 6]).sum(axis=1)
_STATE = 4  # vectors from _codes to _products: low and high codes, signs, scales


def _by_bits(k, a: Val, b: Val) -> Val:
    """Take even lanes of ``a`` and odd ones of ``b``, without a mask register."""
    return x86.blend_bits(k, k.const(I32x16, [-1, 0] * 8), a, b)


def _both_d(k, first: Val, second: Val, adjacent: bool) -> Val:
    """Return the scales d of two blocks, alternating. Loads repeat 32 bits for nothing, 16 bits by a permute."""
    if not adjacent:
        return d_of_distant(k, first, second)
    a, b = (k.load(types.int32, at).splat(I32x8) for at in (first, second - 2))
    return k.half_to_float(x86.blend_bits(k, k.const(I32x8, 0xFFFF), a, b).bits(I16x16))


def _codes(k, first: Val, second: Val, adjacent: bool, out: list[Val]) -> Iterator[None]:
    """Look up two blocks; ``out`` receives the vectors of the state."""
    index_words, words = alternating_words(k, first, second, adjacent, _by_bits)
    index = index_words.bits(I8x64)
    yield
    next_top = (index & 0x40).compare("!=", 0)
    yield
    top = index.compare("<", 0)
    yield
    for table in (_LOW_BYTES, _HIGH_BYTES):
        quarters = [k.const(I8x64, table[64 * i : 64 * i + 64].tolist()) for i in range(4)]
        halves = []
        for low, high in (quarters[:2], quarters[2:]):
            if WIDE_PERMUTES:
                halves.append(x86.permute_bytes_2(k, low, high, index))
                yield
                continue
            first_half = x86.permute_bytes(k, low, index)
            yield
            halves.append(k.select(next_top, x86.permute_bytes(k, high, index), first_half))
            yield
        out.append(k.select(top, halves[1], halves[0]))
        yield
    out.append(x86.multishift(k, k.const(I8x64, SIGN_STARTS), words))
    yield
    d = _both_d(k, first, second, adjacent)
    yield
    out.append(group_scales(k, words) * d)  # five times eleven bits: exact
    yield


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


def _run(*emitters: Iterator[None]) -> None:
    """Advance the emitters in turns to their ends."""
    for _ in zip_longest(*emitters):
        pass


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
        _run(_codes(k, w, w + BLOCK, True, state))
        return joined([k.zero(I32x16)] * count + state)

    @inline(vectors, vectors, Int, addresses)
    def step(k, now, w, xs):
        """Multiply the two decoded blocks by the inputs at ``xs``, and decode the two at ``w``."""
        parts = k.members(now)
        totals: list[Val] = []
        state: list[Val] = []
        products = _products(k, parts[:count], parts[count:], k.members(xs), totals)
        _run(_codes(k, w, w + BLOCK, True, state), products)
        return joined(totals + state)

    @inline(sums, vectors, addresses)
    def finish(k, now, xs):
        """Multiply the last two decoded blocks of a row."""
        parts = k.members(now)
        totals: list[Val] = []
        _run(_products(k, parts[:count], parts[count:], k.members(xs), totals))
        return tuple(totals)

    @inline(sums, sums, Int, addresses)
    def add_last(k, totals, w, xs):
        """Add one block, processed twice; the second half of its inputs is packed as zeros."""
        state: list[Val] = []
        _run(_codes(k, w, w, False, state))
        results: list[Val] = []
        _run(_products(k, k.members(totals), state, k.members(xs), results))
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
