"""Int8 activations: A8 per 32 values and Q8_K per 256 of mode ds4 (model.md 10.2), int8 by groups and back
(docs/explanation/dense.md). Exact: the codes are the definition."""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for, threads_for
from ..driver.intrinsics import bits_to_float, float_bits
from ..driver.shim import cuda
from .maths import INFINITY, rint32

F32 = np.float32
A8_BLOCK, Q8K_BLOCK, Q8K_SUM = 32, 256, 16
EXPONENT_MASK, MAGNITUDE_MASK = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
NOT_A_NUMBER = F32(np.nan)


@cuda.jit(device=True)
def finite_or_zero(x):
    """Return x, or 0 if x is not finite."""
    return x if float_bits(x) & MAGNITUDE_MASK < EXPONENT_MASK else F32(0)


@cuda.jit(device=True)
def code_of(x, inverse):
    """Return the nearest integer to x * inverse, between -128 and 127; the product rounds first."""
    c = int(rint32(F32(finite_or_zero(x) * inverse)))
    return max(-128, min(127, c))


@cuda.jit
def a8_kernel(codes, scales, x, blocks):
    """Quantize one block of 32 values per thread."""
    for b in range(cuda.grid(1), blocks, cuda.gridsize(1)):
        peak = np.int32(0)
        for i in range(A8_BLOCK):
            bits = float_bits(x[b * A8_BLOCK + i]) & MAGNITUDE_MASK
            peak = bits if bits > peak else peak
        scale, inverse = F32(bits_to_float(peak) / F32(127)), F32(0)
        if scale > 0:
            inverse = F32(F32(1) / scale)
            inverse = F32(0) if inverse == INFINITY else inverse
        for i in range(A8_BLOCK):
            codes[b * A8_BLOCK + i] = code_of(x[b * A8_BLOCK + i], inverse)
        scales[b] = NOT_A_NUMBER if peak >= EXPONENT_MASK else scale


def quantize_a8(stream, codes, scales, x, blocks):
    """Quantize to int8 codes in blocks of 32, scale amax / 127."""
    threads = threads_for(blocks, 64, 1)
    a8_kernel[blocks_for(blocks, threads), threads, stream](codes, scales, x, blocks)


@cuda.jit
def i8_kernel(out, x, groups, size):
    """Round one group of values per thread."""
    for g in range(cuda.grid(1), groups, cuda.gridsize(1)):
        base, peak = g * size, np.int32(0)
        for i in range(base, base + size):
            bits = float_bits(x[i]) & MAGNITUDE_MASK
            peak = bits if bits > peak else peak
        scale = NOT_A_NUMBER if peak >= EXPONENT_MASK else F32(bits_to_float(peak) / F32(127))
        divisor = scale if scale > F32(0) else F32(1)
        for i in range(base, base + size):
            v = F32(finite_or_zero(x[i]) / divisor)
            v = max(F32(-127), min(F32(127), v))
            code = F32(rint32(v))
            if F32(v - code) == F32(0.5) and v > F32(0):
                code = F32(code + F32(1))
            if F32(v - code) == F32(-0.5) and v < F32(0):
                code = F32(code - F32(1))
            out[i] = F32(F32(code + F32(0)) * scale)


def round_i8(stream, out, x, groups, size):
    """Round to int8 and back by groups with a scale amax / 127; halves away from zero."""
    threads = threads_for(groups, 64, 1)
    i8_kernel[blocks_for(groups, threads), threads, stream](out, x, groups, size)


@cuda.jit
def q8k_kernel(codes, scales, sums, x, blocks):
    """Quantize one block of 256 values per thread."""
    for b in range(cuda.grid(1), blocks, cuda.gridsize(1)):
        base, peak, first = b * Q8K_BLOCK, np.int32(-1), F32(0)
        for i in range(Q8K_BLOCK):
            bits = float_bits(x[base + i]) & MAGNITUDE_MASK
            if bits > peak:
                peak, first = bits, x[base + i]
        inverse = F32(0)
        if peak > 0 and peak < EXPONENT_MASK:
            inverse = F32(F32(-127) / first)
            inverse = F32(0) if abs(inverse) == INFINITY else inverse
        for part in range(Q8K_BLOCK // Q8K_SUM):
            total = 0
            for i in range(part * Q8K_SUM, (part + 1) * Q8K_SUM):
                code = code_of(x[base + i], inverse)
                codes[base + i] = code
                total += code
            sums[b * (Q8K_BLOCK // Q8K_SUM) + part] = total
        scale = F32(F32(1) / inverse) if inverse != 0 else F32(0)
        scales[b] = NOT_A_NUMBER if peak >= EXPONENT_MASK else scale


def quantize_q8k(stream, codes, scales, sums, x, blocks):
    """Quantize to int8 codes in blocks of 256, the first value of largest magnitude becoming -127; also sums of 16
    codes."""
    threads = threads_for(blocks, 32, 1)
    q8k_kernel[blocks_for(blocks, threads), threads, stream](codes, scales, sums, x, blocks)


@cuda.jit
def restore_kernel(out, codes, scales, size, block):
    """Dequantize in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = F32(F32(codes[i]) * scales[i // block])


def restore(stream, out, codes, scales, size, block):
    """Multiply int8 codes (size,) by the scales of their blocks."""
    threads = threads_for(size, 256, 1)
    restore_kernel[blocks_for(size, threads), threads, stream](out, codes, scales, size, block)
