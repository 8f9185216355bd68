"""Split float inputs into limbs for tensor cores: 16-bit numbers whose sum is the input.

    halves   x 2^k = h + l, binary16. k brings the largest magnitude of a vector between 2^14 and 2^15, so values above
             2^-16 of it keep 23 bits and smaller ones err by at most 2^-39 of it
    bfloats  x = a + b + c, bfloat16: each is the remainder truncated to 8 bits. Exact above 2^-110

An infinity or a NaN makes a limb non-finite, in that vector alone. Limbs are stored in the order products read them, by
units of 32 inputs, padded to an even number: (vectors, units, limbs, 4 pieces, 8 values), zeros behind the last input.
Piece c has the inputs of words c and c + 4 of the unit (``units``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import (
    bits_to_float,
    element,
    float_bits,
    mma_bf16,
    mma_f16,
    permute_bytes,
    put4,
    warp_max,
)
from ..driver.shim import cuda, i32
from ..rows.halves import MAGNITUDE, power_for, two_halves

F32, I32, I64 = np.float32, np.int32, np.int64
ZERO, ONE = F32(0), F32(1)
UPPER = I32(-0x10000)
UPPER_HALVES = 0x7632
"""Selector for ``permute_bytes``: the upper 16 bits of each of two words."""
WARPS = 8
THREADS = 32 * WARPS


@cuda.jit(device=True)
def _rest(a):
    """Subtract the upper 16 bits of a float; NaN for an infinity."""
    return F32(a - bits_to_float(I32(float_bits(a) & UPPER)))


@cuda.jit(device=True)
def three_bfloats(a, b):
    """Return the three limbs of two numbers, the first number in the low half of each word."""
    p, q = _rest(a), _rest(b)
    r, s = _rest(p), _rest(q)
    return (
        permute_bytes(float_bits(a), float_bits(b), UPPER_HALVES),
        permute_bytes(float_bits(p), float_bits(q), UPPER_HALVES),
        permute_bytes(float_bits(r), float_bits(s), UPPER_HALVES),
    )


class Kind(NamedTuple):
    """How inputs are split: limbs per number; ``cut`` makes words of two numbers, ``mma`` multiplies them. ``scaled``:
    each vector has its own power of two."""

    limbs: int
    cut: Callable[..., Any]
    mma: Callable[..., Any]
    scaled: bool


HALVES = Kind(2, two_halves, mma_f16, True)
BFLOATS = Kind(3, three_bfloats, mma_bf16, False)


def even_units(n: int) -> int:
    """Return the units of 32 that n inputs take, rounded up to an even number."""
    return -(-n // 64) * 2


@cuda.jit(device=True)
def _at(x, start, i, n, up):
    return F32(element(x, start + i) * up) if i < n else ZERO


@cache
def _packer(kind: Kind, column: Callable[..., Any], per_block: int) -> Any:
    """Make the kernel for weights of ``per_block`` units a block whose words are in the order of ``column``."""
    limbs, cut, scaled = kind.limbs, kind.cut, kind.scaled

    @cuda.jit
    def pack(out, scales, x, n, units):
        """Pack one vector per block, one piece after the other per thread."""
        t = cuda.threadIdx.y * 32 + cuda.threadIdx.x
        vector = cuda.blockIdx.x
        start = I64(vector) * n
        up = ONE
        if scaled:
            peaks = cuda.shared.array(WARPS, i32)
            peak = I32(0)
            for i in range(t, n, THREADS):
                bits = I32(float_bits(element(x, start + i)) & MAGNITUDE)
                peak = bits if bits > peak else peak
            peak = warp_max(peak)
            if cuda.threadIdx.x == 0:
                peaks[cuda.threadIdx.y] = peak
            cuda.syncthreads()
            for i in range(WARPS):
                peak = peaks[i] if peaks[i] > peak else peak
            up, down = power_for(peak)
            if t == 0:
                scales[2 * vector] = up
                scales[2 * vector + 1] = down
        for i in range(t, 4 * units, THREADS):
            number, c = i >> 2, i & 3
            j = number & (per_block - 1)
            a = 32 * (number - j) + column(j, c)
            b = 32 * (number - j) + column(j, c + 4)
            first = cut(_at(x, start, a, n, up), _at(x, start, a + 1, n, up))
            second = cut(_at(x, start, a + 2, n, up), _at(x, start, a + 3, n, up))
            third = cut(_at(x, start, b, n, up), _at(x, start, b + 1, n, up))
            fourth = cut(_at(x, start, b + 2, n, up), _at(x, start, b + 3, n, up))
            for m in range(limbs):
                target = ((I64(vector) * units + number) * limbs + m) * 16 + 4 * c
                put4(out, target, first[m], second[m], third[m], fourth[m])

    return pack


def pack(
    stream: Any, x: Any, count: int, n: int, kind: Kind, column: Callable[..., Any], per_block: int, scratch: Any
) -> tuple[Any, Any]:
    """Pack x (count, n) float32 to limbs (count, units, limbs, 16) int32 and, if ``kind.scaled``, (count, 2) float32
    with the power of two of each vector and its inverse (else any array)."""
    units = even_units(n)
    limbs = scratch((count * units * kind.limbs * 16,), np.int32)
    scales = scratch((2 * count,), np.float32) if kind.scaled else x
    _packer(kind, column, per_block)[count, (32, WARPS), stream](limbs, scales, x, n, units)
    return limbs, scales
