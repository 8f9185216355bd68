"""Rounding to int8 in groups and back (docs/explanation/dense.md), and conversion of A8 and Q8_K codes
(``products.packing``) back to floats."""

from __future__ import annotations

import numpy as np

from ..driver.grids import per_value
from ..driver.intrinsics import bits_to_float, float_bits
from ..driver.shim import cuda
from .maths import rint32
from .rounding import E2M1_MAX, E2M1_NORMAL, E2M1_STEP, E4M3_MAX, E4M3_NORMAL, E4M3_STEP, nearest

F32 = np.float32
A8_BLOCK, Q8K_BLOCK, Q8K_SUM = 32, 256, 16
EXPONENT_MASK, MAGNITUDE_MASK = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
NOT_A_NUMBER = F32(np.nan)
NVFP4_FLOOR = F32(6 * 2.0**-9)


@cuda.jit(device=True)
def finite_or_zero(x):
    """Return x, or 0 if x is not finite."""
    return x if float_bits(x) & MAGNITUDE_MASK < EXPONENT_MASK else F32(0)


@per_value(64)
def round_i8(out, x, size, length):
    """Round ``size`` groups of ``length`` values to int8 and back, ties away from zero; the scale of a group is its
    largest magnitude / 127."""
    for g in range(cuda.grid(1), size, cuda.gridsize(1)):
        base, peak = g * length, np.int32(0)
        for i in range(base, base + length):
            bits = float_bits(x[i]) & MAGNITUDE_MASK
            peak = bits if bits > peak else peak
        scale = NOT_A_NUMBER if peak >= EXPONENT_MASK else F32(bits_to_float(peak) / F32(127))
        divisor = scale if scale > F32(0) else F32(1)
        for i in range(base, base + length):
            v = F32(finite_or_zero(x[i]) / divisor)
            v = max(F32(-127), min(F32(127), v))
            code = F32(rint32(v))
            if F32(v - code) == F32(0.5) and v > F32(0):
                code = F32(code + F32(1))
            if F32(v - code) == F32(-0.5) and v < F32(0):
                code = F32(code - F32(1))
            out[i] = F32(F32(code + F32(0)) * scale)


@per_value(64)
def round_nvfp4(out, x, size, length):
    """Round ``size`` blocks of ``length`` values to E2M1 and back; the scale of a block is its largest magnitude / 6,
    rounded to E4M3."""
    for g in range(cuda.grid(1), size, cuda.gridsize(1)):
        base, peak = g * length, np.int32(0)
        for i in range(base, base + length):
            bits = float_bits(x[i]) & MAGNITUDE_MASK
            peak = bits if bits > peak else peak
        full = bits_to_float(peak)
        full = F32((NVFP4_FLOOR if full < NVFP4_FLOOR else full) / E2M1_MAX)
        scale = nearest(full, F32(1), E4M3_MAX, E4M3_NORMAL, E4M3_STEP)
        for i in range(base, base + length):
            value = nearest(finite_or_zero(x[i]), scale, E2M1_MAX, E2M1_NORMAL, E2M1_STEP)
            out[i] = NOT_A_NUMBER if peak >= EXPONENT_MASK else value


@per_value()
def restore(out, codes, scales, size, block):
    """Multiply int8 codes (size,) by the scales of their blocks."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = F32(F32(codes[i]) * scales[i // block])
