"""For row stages (``stages``): their numbers, and rounding to small float formats."""

from __future__ import annotations

import numpy as np

from ..driver.intrinsics import bits_to_float, float_bits
from ..driver.shim import cuda
from .maths import rint32

F32 = np.float32
NORM, ROPE, HADAMARD, E4M3, E2M1, F16 = (1 << i for i in range(6))
"""Numbers of the stages, each a bit, in the order in which they run."""

NOT_A_NUMBER = np.float32(np.nan)
EXPONENT_MASK, MAGNITUDE_MASK = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
E4M3_MAX, E4M3_FLOOR, E4M3_NORMAL, E4M3_STEP = F32(448), F32(1e-4), F32(2.0**-6), F32(2.0**-3)
E2M1_MAX, E2M1_FLOOR, E2M1_NORMAL, E2M1_STEP = F32(6), F32(6 * 2.0**-126), F32(1), F32(0.5)


@cuda.jit(device=True)
def nearest(v, scale, top, normal, step):
    """Round ``v`` to a small float format times ``scale``.

    top     greatest value of the format
    normal  least normal value of the format
    step    distance of neighbouring values, relative to the power of two below them

    Dividing by that distance is exact, so the nearest integer, ties to even, is the nearest code, ties to the even
    code.
    """
    v = F32(v / scale)
    v = top if v > top else v
    v = -top if v < -top else v
    binade = bits_to_float(float_bits(v) & EXPONENT_MASK)
    unit = F32((normal if binade < normal else binade) * step)
    return F32(F32(rint32(F32(v / unit)) * unit) * scale)


@cuda.jit(device=True)
def power_of_two(exponent):
    """Return 2^exponent as float32, for exponents in the normal range."""
    return bits_to_float(np.int32((exponent + 127) << 23))
