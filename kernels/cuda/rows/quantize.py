"""Int8 activations by groups and back (docs/explanation/dense.md), and back from A8 and Q8_K (``products.packing``).
Exact: the codes are the definition."""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for, threads_for
from ..driver.intrinsics import bits_to_float, float_bits
from ..driver.shim import cuda
from .maths import rint32

F32 = np.float32
A8_BLOCK, Q8K_BLOCK, Q8K_SUM = 32, 256, 16
EXPONENT_MASK, MAGNITUDE_MASK = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
NOT_A_NUMBER = F32(np.nan)


@cuda.jit(device=True)
def finite_or_zero(x):
    """Return x, or 0 if x is not finite."""
    return x if float_bits(x) & MAGNITUDE_MASK < EXPONENT_MASK else F32(0)


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
def restore_kernel(out, codes, scales, size, block):
    """Dequantize in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = F32(F32(codes[i]) * scales[i // block])


def restore(stream, out, codes, scales, size, block):
    """Multiply int8 codes (size,) by the scales of their blocks."""
    threads = threads_for(size, 256, 1)
    restore_kernel[blocks_for(size, threads), threads, stream](out, codes, scales, size, block)
