"""Chains of row stages (``stages``) for many rows, whose values stay in registers: a warp has a short row, lane i the
i-th piece of it; a block norms a long one.

Roundings give the bits of ``stages``; the norm adds in another order, and rope may fuse other products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import (
    bits_to_float,
    divide,
    float_bits,
    float_to_half,
    half_to_float,
    put4,
    read4,
    shift_right,
    shuffle_xor,
    warp_sum,
)
from ..driver.shim import cuda, f32, f64
from .maths import log2_64, sqrt32
from .small_formats import (
    E2M1,
    E2M1_FLOOR,
    E2M1_MAX,
    E2M1_NORMAL,
    E2M1_STEP,
    E4M3,
    E4M3_FLOOR,
    E4M3_MAX,
    E4M3_NORMAL,
    E4M3_STEP,
    EXPONENT_MASK,
    F16,
    HADAMARD,
    MAGNITUDE_MASK,
    NORM,
    NOT_A_NUMBER,
    ROPE,
    nearest,
    power_of_two,
)

F32, I32, U64 = np.float32, np.int32, np.uint64
ONE = F32(1)
LENGTHS = (128, 256, 512)
"""Values of rows for which there is a kernel."""
FEWEST = 2048
"""Rows from which on they fill a GPU. A few tokens at a time stay below, so that they get the bits of one."""
FEWEST_NORMS = 64
WARPS = 8
BLOCK, BLOCK_WARPS, MOST_EACH = 256, 8, 16
"""Threads and warps of a block with one row, and most values of a thread."""
MANTISSA, EXACT = I32(0x7FFFFF), I32(64)
"""EXACT: above a power of two by more than this, in units of the mantissa, the logarithm in float32 is above a whole
number, too."""


@cuda.jit(device=True)
def exponent_of(x):
    """Return the least whole number that the base-2 logarithm of a normal x, rounded to float32, does not exceed."""
    bits = float_bits(x)
    exponent = I32(shift_right(bits, 23) - 127)
    if bits & MANTISSA > EXACT:
        return I32(exponent + 1)
    logarithm = F32(log2_64(x))
    exponent = I32(int(logarithm))
    return I32(exponent + 1) if F32(exponent) < logarithm else exponent


@cuda.jit
def norm_kernel(out, x, weight, n, weighted, eps):
    """Norm one long row per block."""
    sums = cuda.shared.array(BLOCK_WARPS, f64)
    t = I32(cuda.threadIdx.x)
    base = np.int64(cuda.blockIdx.x) * n
    v = cuda.local.array(MOST_EACH, f32)
    total = 0.0
    for k in range(MOST_EACH // 4):
        at = I32(4 * (t + k * BLOCK))
        if at < n:
            a, b, c, d = read4(x, base + at)
            v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3] = (
                bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)
            )  # fmt: skip
            for i in range(4):
                total += np.float64(v[4 * k + i]) * np.float64(v[4 * k + i])
    total = warp_sum(total)
    if t & 31 == 0:
        sums[U64(t >> 5)] = total
    cuda.syncthreads()
    total = 0.0
    for i in range(BLOCK_WARPS):
        total += sums[U64(i)]
    rate = F32(ONE / sqrt32(F32(F32(total / n) + eps)))
    for k in range(MOST_EACH // 4):
        at = I32(4 * (t + k * BLOCK))
        if at < n:
            a, b = F32(v[4 * k] * rate), F32(v[4 * k + 1] * rate)
            c, d = F32(v[4 * k + 2] * rate), F32(v[4 * k + 3] * rate)
            if weighted:
                w = read4(weight, at)
                a, b = F32(a * bits_to_float(w[0])), F32(b * bits_to_float(w[1]))
                c, d = F32(c * bits_to_float(w[2])), F32(d * bits_to_float(w[3]))
            put4(out, base + at, float_bits(a), float_bits(b), float_bits(c), float_bits(d))


def norms(rows: int, n: int, stages: int) -> bool:
    """Whether this module norms such rows, a block each."""
    return stages == NORM and rows >= FEWEST_NORMS and n % 4 == 0 and LENGTHS[-1] < n <= BLOCK * MOST_EACH


def norm(stream, out, x, weight, rows, n, weighted, eps):
    """Norm rows of n values, of which ``norms`` says that this module does."""
    norm_kernel[rows, BLOCK, stream](out, x, weight, n, weighted, F32(eps))


def fits(rows: int, n: int, stages: int, gap: int, half: int) -> bool:
    """Whether this module has such chains: rope of adjacent pairs only."""
    return rows >= FEWEST and n in LENGTHS and not (stages & ROPE and gap != 1) and 2 * half <= n


@cache
def kernel(n: int) -> Any:
    """Make the kernel for rows of n values."""
    each = n // 32
    across_e4m3, across_e2m1 = 64 // each, 32 // each

    @cuda.jit(device=True)
    def round_block(v, lanes, limit, top, floor, normal, step):
        """Round the values of ``lanes`` lanes to a small format with one scale, unless the lane is behind ``limit``."""
        peak = I32(0)
        for i in range(each):
            magnitude = I32(float_bits(v[i]) & MAGNITUDE_MASK)
            peak = magnitude if magnitude > peak else peak
        span = 1
        while span < lanes:
            other = shuffle_xor(peak, span)
            peak = other if other > peak else peak
            span *= 2
        if each * cuda.threadIdx.x < limit:
            amax = bits_to_float(peak)
            amax = floor if amax < floor else amax
            scale = power_of_two(exponent_of(F32(amax / top))) if peak < EXPONENT_MASK else NOT_A_NUMBER
            for i in range(each):
                v[i] = nearest(v[i], scale, top, normal, step) if peak < EXPONENT_MASK else NOT_A_NUMBER

    @cuda.jit
    def short_chain(
        out, x, weight, cos, sin, rows, heads, stages, weighted, eps, half, sign, channels, factor
    ):  # fmt: skip
        """Run the chain on one row per warp."""
        lane = I32(cuda.threadIdx.x)
        row = I32(cuda.blockIdx.x * WARPS + cuda.threadIdx.y)
        if row >= rows:
            return
        first = I32(each * lane)
        base = np.int64(row) * n + first
        v = cuda.local.array(each, f32)
        for i in range(0, each, 4):
            a, b, c, d = read4(x, base + i)
            v[i], v[i + 1], v[i + 2], v[i + 3] = bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)
        if stages & NORM:
            total = 0.0
            for i in range(each):
                total += np.float64(v[i]) * np.float64(v[i])
            mean = F32(warp_sum(total) / n)
            rate = F32(ONE / sqrt32(F32(mean + eps)))
            for i in range(each):
                v[i] = F32(v[i] * rate)
            if weighted:
                for i in range(each):
                    v[i] = F32(v[i] * weight[U64(first + i)])
        if stages & ROPE:
            plain = I32(n - 2 * half)
            at = divide(row, heads) * half
            for i in range(0, each, 2):
                if first + i >= plain:
                    pair = at + ((first + i - plain) >> 1)
                    c, s = cos[U64(pair)], F32(sin[U64(pair)] * sign)
                    a, b = v[i], v[i + 1]
                    v[i] = F32(a * c - b * s)
                    v[i + 1] = F32(a * s + b * c)
        if stages & HADAMARD:
            width = 1
            while width < each:
                for i in range(each):
                    if i & width == 0:
                        a, b = v[i], v[i + width]
                        v[i], v[i + width] = F32(a + b), F32(a - b)
                width *= 2
            span = 1
            while span < 32:
                upper = lane & span != 0
                for i in range(each):
                    other = shuffle_xor(v[i], span)
                    v[i] = F32(other - v[i]) if upper else F32(v[i] + other)
                span *= 2
            for i in range(each):
                v[i] = F32(v[i] * factor)
        if stages & E4M3:
            round_block(v, across_e4m3, channels, E4M3_MAX, E4M3_FLOOR, E4M3_NORMAL, E4M3_STEP)
        if stages & E2M1:
            round_block(v, across_e2m1, n, E2M1_MAX, E2M1_FLOOR, E2M1_NORMAL, E2M1_STEP)
        if stages & F16:
            for i in range(each):
                v[i] = half_to_float(float_to_half(v[i]))
        for i in range(0, each, 4):
            put4(
                out, base + i, float_bits(v[i]), float_bits(v[i + 1]), float_bits(v[i + 2]), float_bits(v[i + 3])
            )  # fmt: skip

    return short_chain


def chain(stream, out, x, weight, cos, sin, rows, n, heads, stages, weighted, eps, half, sign, channels, factor):
    """Run ``stages.chain`` on rows of LENGTHS values, with rope of adjacent pairs."""
    kernel(n)[-(-rows // WARPS), (32, WARPS), stream](
        out, x, weight, cos, sin, rows, heads, stages, weighted, F32(eps), half, F32(sign), channels, F32(factor)
    )
