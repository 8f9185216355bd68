"""Row kernels of FP8 weights (E4M3) for float inputs in tier A: blocks of 128 codes with an E8M0 scale, which are
stored together or apart.

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
from ...formats.apart import FP8
from . import x86
from .decode import block_scale
from .row_kernel import LANES_16, Part, RowKernel, make_rows, records
from .vec import JIT, F32x16, I8x64, I32x16, Int, Val, inline

F8 = FORMATS["F8_E4M3"]
BLOCK, HALF = F8.block_elems, 64

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


def _kernel(add: Any, block_bytes: int, **options: Any) -> RowKernel:
    rows = make_rows(LANES_16, 2, Part(BLOCK, add, block_bytes, 4 * BLOCK), **options)
    return RowKernel(_pack, rows, records(BLOCK, 4 * BLOCK))


APART = _kernel(_add_apart, BLOCK, apart=FP8, twice=True)
JOINED = _kernel(_add_joined, F8.block_bytes)
