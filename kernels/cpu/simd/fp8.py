"""FP8 rows (E4M3) times float inputs in tier A: blocks of 128 codes with an E8M0 scale, joined or apart.

A code is looked up as bfloat16, exact for every value, NaN and subnormal numbers too: one table of 128 bytes for the
upper bytes, one for the lower ones, the sign put in. Two bytes side by side in the upper half of a lane are a float32.
So 64 codes become four vectors, whose order the packed inputs have, too.

Packed buffer: the inputs, every 64 of them in the order of ``_ORDER``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from ...formats import FORMATS
from . import x86
from .decode import block_scale
from .helpers import load_int, prefetch_twice
from .row_kernel import LANES_16, Inputs, Part, RowKernel, for_counts, make_rows, records, several_adds
from .vec import JIT, F32x16, I8x64, I32x16, Int, Val, inline, several

F8 = FORMATS["F8_E4M3"]
BLOCK, HALF = F8.block_elems, 64
_ROWS = 128  # that share a scale, where scales lie apart

assert F8.small is not None
_BITS = F8.small.table[:128].view(np.uint32)
_UPPER, _LOWER = (_BITS >> 24).tolist(), (_BITS >> 16 & 255).tolist()
# byte b of the interleaved pairs, in each 128-bit quarter: 8 codes in one vector, the next 8 in the other
_PAIRS = [[16 * q + 8 * half + i + at for q in range(4) for i in range(8) for at in (0, HALF)] for half in range(2)]
_ORDER = [16 * q + 8 * half + 2 * i + odd for half in range(2) for odd in range(2) for q in range(4) for i in range(4)]


def _floats(k, codes: Val) -> list[Val]:
    """Return 64 codes as four F32x16, in the order of ``_ORDER``."""
    upper, lower = (
        x86.permute_bytes_2(k, k.const(I8x64, table[:64]), k.const(I8x64, table[64:]), codes)
        for table in (_UPPER, _LOWER)
    )
    upper = upper | (codes & 0x80)
    floats = []
    for places in _PAIRS:
        words = lower.shuffle(places, upper).bits(I32x16)
        floats += [(words << 16).bits(F32x16), (words & 0xFFFF0000).bits(F32x16)]
    return floats


def _add(k, total: Val, codes: Val, scale: Val, x: Val) -> Val:
    """Return total + the lane sums of a block."""
    part = None
    for half in range(2):
        for i, values in enumerate(_floats(k, k.load(I8x64, codes + HALF * half))):
            inputs = k.load(F32x16, x + (256 * half + 64 * i))
            part = values * inputs if part is None else k.fma(values, inputs, part)
    assert part is not None
    return k.fma(part, block_scale(k, F8, scale, F32x16), total)


_add_joined = inline(F32x16, F32x16, Int, Int)(lambda k, total, weights, x: _add(k, total, weights + 1, weights, x))


_add_apart = inline(F32x16, F32x16, Int, Int, Int)(lambda k, total, codes, scale, x: _add(k, total, codes, scale, x))


@inline(types.none, Int, Int)
def _pack_half(k, target, x):
    parts = [k.load(F32x16, x + 64 * i) for i in range(4)]
    whole = parts[0].cat(parts[1]).cat(parts[2].cat(parts[3]))
    for i in range(4):
        k.store(target + 64 * i, whole.shuffle(_ORDER[16 * i : 16 * i + 16]))


@njit(**JIT)
def _pack(x, n, buffer):
    for _ in range(n // HALF):
        _pack_half(buffer, x)
        buffer += 4 * HALF
        x += 4 * HALF


_zero = inline(F32x16)(lambda k: k.zero(F32x16))


_total = inline(types.float32, F32x16)(lambda k, sums: k.hsum(sums))


def _apart_rows(count: int, inputs: Inputs) -> Any:
    buffers, outs, forward, store = inputs
    zero, add, total = several(_zero, count), several_adds(_add_apart, count), several(_total, count)

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, table):
        start, out, blocks = buffers(table), outs(table), n // BLOCK
        for row in range(first, last):
            codes, scale = load_int(weights) + row * row_bytes, load_int(weights + 8) + row // _ROWS * blocks
            x = start
            sums = zero()
            for _ in range(blocks):
                prefetch_twice(codes)
                prefetch_twice(codes + 64)
                sums = add(sums, codes, scale, x)
                codes += BLOCK
                scale += 1
                x = forward(x, 4 * BLOCK)
            store(forward(out, 4 * row), total(sums))

    return rows


APART = RowKernel(_pack, for_counts(_apart_rows), records(BLOCK, 4 * BLOCK))
JOINED = RowKernel(
    _pack, make_rows(LANES_16, 2, Part(BLOCK, _add_joined, F8.block_bytes, 4 * BLOCK)), records(BLOCK, 4 * BLOCK)
)
