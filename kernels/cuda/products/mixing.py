"""Mixing logits of many tokens on tensor cores (``plain`` has those of few): a few rows of F16 times all streams.

A block takes TOKENS tokens; its warps share the columns, 32 at a time, and read every stream once. Inputs are two limbs
of binary16 (``rows.halves``), scaled by the largest of their 32; a lane has eight adjacent columns, so that inputs and
weights are read 16 bytes at a time. Columns may stand in any order in a sum, if it is the same for both.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import bits_to_float, divide, mma_f16, read4, shuffle_xor, words_at
from ..driver.shim import cuda, f32, f64
from ..rows.halves import MAGNITUDE, power_for, two_halves
from ..rows.maths import sqrt32

F32, F64, I32, U64 = np.float32, np.float64, np.int32, np.uint64
ZERO, ONE, NOTHING = F32(0), F32(1), F64(0)
TOKENS, WARPS = 16, 16
THREADS = 32 * WARPS
SQUARES = WARPS * TOKENS
MOST_ROWS = 40
"""Rows whose partial sums fit the shared memory of a block."""


def fits(fmt: str, tokens: int, rows: int, n: int) -> bool:
    """Whether there is such a kernel, and it pays."""
    return fmt == "F16" and tokens >= TOKENS and rows <= MOST_ROWS and n % 32 == 0


@cuda.jit(device=True)
def peak_of(a, b):
    """Return the largest magnitude, as bits, of eight words."""
    p, q = max(I32(a[0] & MAGNITUDE), I32(a[1] & MAGNITUDE)), max(I32(a[2] & MAGNITUDE), I32(a[3] & MAGNITUDE))
    r, s = max(I32(b[0] & MAGNITUDE), I32(b[1] & MAGNITUDE)), max(I32(b[2] & MAGNITUDE), I32(b[3] & MAGNITUDE))
    return max(max(p, q), max(r, s))


@cuda.jit(device=True)
def limbs_of(a, up):
    """Return both limbs of four values times ``up``, two words each, and the sum of their squares."""
    p, q = F32(bits_to_float(a[0]) * up), F32(bits_to_float(a[1]) * up)
    r, s = F32(bits_to_float(a[2]) * up), F32(bits_to_float(a[3]) * up)
    high0, low0 = two_halves(p, q)
    high1, low1 = two_halves(r, s)
    return high0, high1, low0, low1, F32(p * p + q * q) + F32(r * r + s * s)


@cache
def kernel(eights: int) -> Any:
    """Make the kernel for at most 8 ``eights`` rows."""
    sums, width = 4 * eights, 8 * eights
    part_words = WARPS * TOKENS * width

    @cuda.jit
    def mix(out, x, raw, rows, n, tokens, eps):
        parts = cuda.shared.array(part_words, f32)
        squares = cuda.shared.array(SQUARES, f64)
        lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
        t = I32(warp * 32 + lane)
        r, c = lane >> 2, lane & 3
        first = I32(cuda.blockIdx.x * TOKENS)
        upper = I32(min(I32(first + r), I32(tokens - 1)))
        lower = I32(min(I32(first + r + 8), I32(tokens - 1)))
        total = cuda.local.array(sums, f32)
        for i in range(sums):
            total[i] = ZERO
        square0, square1 = NOTHING, NOTHING
        column = I32(32 * warp + 8 * c)
        while column < n:
            a, b = read4(x, np.int64(upper) * n + column), read4(x, np.int64(upper) * n + column + 4)
            p, q = read4(x, np.int64(lower) * n + column), read4(x, np.int64(lower) * n + column + 4)
            peak0, peak1 = peak_of(a, b), peak_of(p, q)
            peak0, peak1 = max(peak0, shuffle_xor(peak0, 1)), max(peak1, shuffle_xor(peak1, 1))
            peak0, peak1 = max(peak0, shuffle_xor(peak0, 2)), max(peak1, shuffle_xor(peak1, 2))
            up0, down0 = power_for(peak0)
            up1, down1 = power_for(peak1)
            a0, a2, l0, l2, s = limbs_of(a, up0)
            b0, b2, m0, m2, v = limbs_of(b, up0)
            square0 += F64(s + v) * (F64(down0) * F64(down0))
            a1, a3, l1, l3, s = limbs_of(p, up1)
            b1, b3, m1, m3, v = limbs_of(q, up1)
            square1 += F64(s + v) * (F64(down1) * F64(down1))
            for e in range(eights):
                row = min(I32(8 * e + r), I32(rows - 1))
                w = words_at(raw, 2 * (row * n + column))
                d = mma_f16(l0, l1, l2, l3, w[0], w[1], ZERO, ZERO, ZERO, ZERO)
                d = mma_f16(m0, m1, m2, m3, w[2], w[3], d[0], d[1], d[2], d[3])
                d = mma_f16(a0, a1, a2, a3, w[0], w[1], d[0], d[1], d[2], d[3])
                d = mma_f16(b0, b1, b2, b3, w[2], w[3], d[0], d[1], d[2], d[3])
                total[4 * e] += F32(d[0] * down0)
                total[4 * e + 1] += F32(d[1] * down0)
                total[4 * e + 2] += F32(d[2] * down1)
                total[4 * e + 3] += F32(d[3] * down1)
            column += I32(THREADS)
        square0 += shuffle_xor(square0, 1)
        square0 += shuffle_xor(square0, 2)
        square1 += shuffle_xor(square1, 1)
        square1 += shuffle_xor(square1, 2)
        if c == 0:
            squares[U64(warp * TOKENS + r)] = square0
            squares[U64(warp * TOKENS + r + 8)] = square1
        for e in range(eights):
            at = (warp * TOKENS + r) * width + 8 * e + 2 * c
            parts[U64(at)], parts[U64(at + 1)] = total[4 * e], total[4 * e + 1]
            at += 8 * width
            parts[U64(at)], parts[U64(at + 1)] = total[4 * e + 2], total[4 * e + 3]
        cuda.syncthreads()
        number = t
        while number < TOKENS * rows:
            token = divide(number, rows)
            row = I32(number - token * rows)
            value, square = ZERO, NOTHING
            for k in range(WARPS):
                value += parts[U64((k * TOKENS + token) * width + row)]
                square += squares[U64(k * TOKENS + token)]
            mean = F32(square / n)
            if first + token < tokens:
                out[U64((first + token) * rows + row)] = value * F32(ONE / sqrt32(F32(mean + eps)))
            number += I32(THREADS)

    return mix


def hc_mix(stream: Any, out: Any, x: Any, raw: Any, tokens: int, rows: int, n: int, eps: float) -> None:
    """Run ``plain.hc_mix`` with rows of F16."""
    kernel(-(-rows // 8))[-(-tokens // TOKENS), (32, WARPS), stream](out, x, raw, rows, n, tokens, F32(eps))
