"""Rounding to low-precision formats and back (docs/explanation/model.md 10.3). Every operation is exact or correctly
rounded, so the compiler may not reorder any."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from ..sizes import E2M1_BLOCK, NVFP4_BLOCK
from .lang import JIT, bits_float, f32p, float_bits, log2, power_of_two, rint, round_f16
from .registry import body

ZERO, ONE, TWO, HALF = np.float32(0), np.float32(1), np.float32(2), np.float32(0.5)
I8_MAX = np.float32(127)
E4M3_MAX, E4M3_FLOOR = np.float32(448), np.float32(1e-4)
E2M1_MAX, E2M1_FLOOR, NVFP4_FLOOR = np.float32(6), np.float32(6 * 2.0**-126), np.float32(6 * 2.0**-9)
NOT_A_NUMBER = np.float32(np.nan)
EXPONENT_MASK = np.int32(0x7F800000)
MAGNITUDE_MASK = np.int32(0x7FFFFFFF)


@njit(**JIT)
def round_block(x, out, n, top, floor, smallest, mantissa_ulp):
    """Round a block of n values to a small float format and back, with a power-of-two scale.

    top           greatest value of the format
    floor         least value that the block's largest magnitude counts as
    smallest      least normal value of the format
    mantissa_ulp  distance of neighbouring values, relative to the power of two below them

    Dividing by that distance is exact, so rounding to the nearest integer, ties to even, rounds to the nearest code,
    ties to the even code. A block with an infinity or a NaN becomes NaN throughout.
    """
    largest = np.int32(0)  # magnitudes order like their bit patterns, then infinity, then NaN
    for i in range(n):
        largest = max(largest, float_bits(x[i]) & MAGNITUDE_MASK)
    if largest >= EXPONENT_MASK:
        for i in range(n):
            out[i] = NOT_A_NUMBER
        return
    amax = max(floor, bits_float(largest))
    exponent = np.ceil(log2(amax / top))
    scale = power_of_two(exponent)
    for i in range(n):
        v = min(max(x[i] / scale, -top), top)
        binade = bits_float(float_bits(v) & EXPONENT_MASK)
        step = max(binade, smallest) * mantissa_ulp
        out[i] = rint(v / step) * step * scale


@body(t.ROUND_E4M3, exact=True)
def round_e4m3(args, first, last, thread):
    """Round to E4M3 (3 mantissa bits, normal from 2^-6); items are blocks of ``block`` values.

    The first ``blocks`` blocks of each row are rounded; the rest of the row is copied with the last of them.
    """
    width, blocks, size = args.width, args.blocks, args.block
    for item in range(first, last):
        block = item % blocks
        at = 4 * (width * (item // blocks) + size * block)
        x, out = f32p(args.x + at), f32p(args.out + at)
        round_block(x, out, size, E4M3_MAX, E4M3_FLOOR, np.float32(2.0**-6), np.float32(2.0**-3))
        if block == blocks - 1:
            for i in range(size, width - size * block):
                out[i] = x[i]


@body(t.ROUND_E2M1, exact=True)
def round_e2m1(args, first, last, thread):
    """Round to E2M1 (1 mantissa bit, normal from 1); items are blocks of 32 values."""
    for b in range(first, last):
        x, out = f32p(args.x + 4 * E2M1_BLOCK * b), f32p(args.out + 4 * E2M1_BLOCK * b)
        round_block(x, out, E2M1_BLOCK, E2M1_MAX, E2M1_FLOOR, np.float32(1), np.float32(0.5))


@njit(**JIT)
def nearest(v, smallest, mantissa_ulp):
    """Return the nearest value of a small float format, as ``round_block`` describes it."""
    binade = bits_float(float_bits(v) & EXPONENT_MASK)
    step = max(binade, smallest) * mantissa_ulp
    return rint(v / step) * step


@body(t.ROUND_NVFP4, exact=True)
def round_nvfp4(args, first, last, thread):
    """Round to E2M1 with a scale in E4M3; items are blocks of 16 values."""
    for b in range(first, last):
        x, out = f32p(args.x + 4 * NVFP4_BLOCK * b), f32p(args.out + 4 * NVFP4_BLOCK * b)
        largest = np.int32(0)
        for i in range(NVFP4_BLOCK):
            largest = max(largest, float_bits(x[i]) & MAGNITUDE_MASK)
        scale = NOT_A_NUMBER
        if largest < EXPONENT_MASK:
            full = max(NVFP4_FLOOR, bits_float(largest)) / E2M1_MAX
            scale = nearest(min(full, E4M3_MAX), np.float32(2.0**-6), np.float32(2.0**-3))
        for i in range(NVFP4_BLOCK):
            v = min(max(x[i] / scale, -E2M1_MAX), E2M1_MAX)
            out[i] = nearest(v, ONE, HALF) * scale


@body(t.ROUND_F16, exact=True)
def f16(args, first, last, thread):
    """Round to binary16 and back; items are values."""
    x, out = f32p(args.x), f32p(args.out)
    for i in range(first, last):
        out[i] = round_f16(x[i])


@body(t.ROUND_I8, exact=True)
def round_i8(args, first, last, thread):
    """Round to int8 and back, ties away from zero; items are groups, whose scale is their largest magnitude / 127."""
    n = args.group
    for item in range(first, last):
        x, out = f32p(args.x + 4 * n * item), f32p(args.out + 4 * n * item)
        largest = np.int32(0)
        for i in range(n):
            largest = max(largest, float_bits(x[i]) & MAGNITUDE_MASK)
        scale = NOT_A_NUMBER if largest >= EXPONENT_MASK else bits_float(largest) / I8_MAX
        divisor = scale if scale > ZERO else ONE
        for i in range(n):
            v = min(max(x[i] / divisor, -I8_MAX), I8_MAX)
            code = rint(v)
            if v - code == HALF and v > ZERO:
                code += ONE
            if v - code == -HALF and v < ZERO:
                code -= ONE
            out[i] = (code + ZERO) * scale


@body(t.HADAMARD, exact=True)
def hadamard(args, first, last, thread):
    """Transform rows of n values (the items), n a power of two: sums and differences at distance 1, 2, 4, ... in place,
    then times n^-1/2."""
    n = args.n
    factor = np.float32(args.factor)
    for r in range(first, last):
        x, out = f32p(args.x + 4 * n * r), f32p(args.out + 4 * n * r)
        for i in range(n):
            out[i] = x[i]
        stride = 1
        while stride < n:
            for start in range(0, n, 2 * stride):
                for i in range(start, start + stride):
                    a, b = out[i], out[i + stride]
                    out[i] = a + b
                    out[i + stride] = a - b
            stride *= 2
        for i in range(n):
            out[i] *= factor
