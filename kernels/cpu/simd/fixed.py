"""Float activations for integer dot products: 24-bit fixed point in three int8 limbs (tier A).

An integer dot instruction multiplies 64 weights at once, a float one 16, and only after two conversions. So the float
kernels of the K and IQ formats write x = scale * (65536 high + 256 middle + low), with one scale for 16 or 32 inputs,
and take three integer dot products, exact in int32. The error is at most 2^-23 of the largest of those inputs (2^-22 in
Q2_K), the size of one float32 rounding of it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .quantize import largest_of_32
from .vec import JIT, Emit, F32x32, I8x32, I32x32, Val

LARGEST = 8_355_000
"""Greatest |x / scale|: 127 * 65536 + 127 * 256 + 127, less some room for rounding."""

SMALLEST = np.float32(1e-31)  # below this, LARGEST / x would overflow; such inputs count as zeros


def limbs(k: Emit, x: Val, inverse: Val) -> tuple[Val, Val, Val]:
    """Split rint(x * inverse), F32x32 each, into limbs (high, middle, low) as I8x32; low and middle in -128..127."""
    whole = k.call("llvm.rint.v32f32", F32x32, x * inverse).to_int(I32x32)
    low = whole.trunc(I8x32)
    rest = (whole - low.sext(I32x32)).shift_right_signed(8)
    middle = rest.trunc(I8x32)
    return (rest - middle.sext(I32x32)).shift_right_signed(8).trunc(I8x32), middle, low


@njit(**JIT)
def scale_of_32(x):
    """Return (scale, 1 / scale) of the 32 floats at address ``x``; the inverse is 0 where it would not be finite."""
    largest = largest_of_32(x)
    scale = largest / np.float32(LARGEST)
    if largest > SMALLEST:
        return scale, np.float32(LARGEST) / largest
    return scale, np.float32(0)
