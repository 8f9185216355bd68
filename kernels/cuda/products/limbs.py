"""Split float inputs into *limbs* for tensor cores: 16-bit floats whose sum is the input.

    codes    int8 codes of A8 or Q8_K as binary16 (one limb); a product multiplies by their scales later
    halves   x 2^k = h + l, binary16. k brings the largest magnitude of a vector between 2^14 and 2^15, so values above
             2^-16 of it keep 23 bits and smaller ones err by at most 2^-39 of it
    bfloats  x = a + b + c, bfloat16: each is the remainder truncated to 8 bits. Exact above 2^-110

An infinity or a NaN makes a limb non-finite, in that input vector alone. Limbs are stored in the order in which
products read them, in units of 32 inputs, padded with zeros to an even number of units: (vectors, units, limbs, 4
pieces, 8 values). Piece c has the inputs that belong to words c and c + 4 of the unit's weights (``units``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import (
    add_halves,
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
from .decoding import straight
from .units import UNITS

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
    """How inputs are split into limbs.

    limbs   limbs per number
    cut     device function (a, b) that returns the limbs of two numbers, as words that hold one limb of each
    mma     instruction that multiplies matrices of such limbs
    scaled  whether each input vector is first multiplied by a power of two of its own
    """

    limbs: int
    cut: Callable[..., Any]
    mma: Callable[..., Any]
    scaled: bool


CODES = Kind(1, two_halves, mma_f16, False)
HALVES = Kind(2, two_halves, mma_f16, True)
BFLOATS = Kind(3, three_bfloats, mma_bf16, False)


def even_units(n: int) -> int:
    """Return the number of units of 32 that n inputs take, rounded up to an even number."""
    return -(-n // 64) * 2


@cuda.jit(device=True)
def _at(x, start, i, n, up):
    return F32(element(x, start + i) * up) if i < n else ZERO


@cache
def _packer(kind: Kind, column: Callable[..., Any], per_block: int) -> Any:
    """Make the kernel that packs inputs for weights with ``per_block`` units per block, whose words are in the order
    that ``column`` gives."""
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


TOP_BITS = I32(-0x7F7F7F80)
EXPONENT_10, MINUS_1152 = I32(0x64646464), I32(-0x1B7F1B80)
"""Bytes of the binary16 1024, whose low bits a code becomes, and twice the binary16 -1152."""


@cuda.jit(device=True)
def halves_of(codes):
    """Convert four signed bytes to binary16, two in a word."""
    biased = I32(codes ^ TOP_BITS)
    return (
        add_halves(permute_bytes(biased, EXPONENT_10, 0x4140), MINUS_1152),
        add_halves(permute_bytes(biased, EXPONENT_10, 0x4342), MINUS_1152),
    )


@cache
def _code_packer(column: Callable[..., Any], per_block: int) -> Any:
    @cuda.jit
    def pack(out, codes, n, units):
        """Pack one vector per block, one piece after the other per thread."""
        vector = I64(cuda.blockIdx.x)
        for i in range(cuda.threadIdx.x, 4 * units, THREADS):
            number, c = i >> 2, i & 3
            j = number & (per_block - 1)
            first, second = (I32(0), I32(0)), (I32(0), I32(0))
            if 32 * number < n:
                at = vector * n + 32 * (number - j)
                first = halves_of(element(codes, (at + column(j, c)) >> 2))
                second = halves_of(element(codes, (at + column(j, c + 4)) >> 2))
            put4(out, (vector * units + number) * 16 + 4 * c, first[0], first[1], second[0], second[1])

    return pack


def _order(fmt: str) -> tuple[Callable[..., Any], int]:
    """Return the order of words in a block of a format (``column``), and the units per block; for formats without
    blocks, the natural order."""
    unit = UNITS.get(fmt)
    return (straight, 1) if unit is None or unit.column is straight else (unit.column, unit.per_block)


def pack(stream: Any, out: Any, powers: Any, x: Any, fmt: str, kind: Kind, count: int, n: int) -> None:
    """Pack x (count, n) float32 for weights of ``fmt`` to limbs (count, units, limbs, 16) int32 and, if
    ``kind.scaled``, (count, 2) float32 with the power of two of each vector and its inverse."""
    _packer(kind, *_order(fmt))[count, (32, WARPS), stream](out, powers, x, n, even_units(n))


def pack_codes(stream: Any, out: Any, codes: Any, fmt: str, count: int, n: int) -> None:
    """Pack int8 codes (count, n) for weights of ``fmt``, like ``pack``."""
    _code_packer(*_order(fmt))[count, THREADS, stream](out, codes, n, even_units(n))
