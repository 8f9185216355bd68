"""Integer activations (engine.md 2.2): A8 per 32 values, Q8_K per 256. Exact: the codes are part of the definition."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from .lang import JIT, f32p, i8p, i16p, rint
from .registry import body

ONE, ZERO, CODE_MAX = np.float32(1), np.float32(0), np.float32(127)


@njit(**JIT)
def a8_block(x, codes):
    """32 values to codes; returns the scale amax / 127."""
    amax = ZERO
    for i in range(32):
        amax = max(amax, abs(x[i]))
    scale = amax / CODE_MAX
    inverse = ONE / scale if scale != ZERO else ZERO
    for i in range(32):
        codes[i] = np.int8(rint(x[i] * inverse))
    return scale


@njit(**JIT)
def q8k_block(x, codes):
    """256 values to codes, the first of largest magnitude becoming -127; returns the scale, of the opposite sign."""
    amax, peak = ZERO, ZERO
    for i in range(256):
        if abs(x[i]) > amax:
            amax, peak = abs(x[i]), x[i]
    if amax == ZERO:
        for i in range(256):
            codes[i] = 0
        return ZERO
    inverse = -CODE_MAX / peak
    for i in range(256):
        codes[i] = np.int8(min(max(rint(inverse * x[i]), -CODE_MAX - ONE), CODE_MAX))
    return ONE / inverse


@body(t.QUANTIZE_A8, exact=True)
def quantize_a8(args, first, last, thread):
    """Items are blocks of 32 values."""
    for b in range(first, last):
        f32p(args.scales)[b] = a8_block(f32p(args.x + 128 * b), i8p(args.codes + 32 * b))


@body(t.QUANTIZE_Q8K, exact=True)
def quantize_q8k(args, first, last, thread):
    """Items are blocks of 256 values."""
    for b in range(first, last):
        codes, sums = i8p(args.codes + 256 * b), i16p(args.sums + 32 * b)
        f32p(args.scales)[b] = q8k_block(f32p(args.x + 1024 * b), codes)
        for j in range(16):
            total = 0
            for i in range(16):
                total += codes[16 * j + i]
            sums[j] = np.int16(total)
