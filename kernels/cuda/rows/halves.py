"""Split a float32 into two binary16 (*limbs*): x 2^k = h + l, where k brings the largest magnitude of a vector between
2^14 and 2^15. Values above 2^-16 of it keep 23 bits, smaller ones err by at most 2^-39 of it."""

from __future__ import annotations

import numpy as np

from ..driver.intrinsics import bits_to_float, float_to_half, half_to_float, shift_left, shift_right
from ..driver.shim import cuda

F32, I32 = np.float32, np.int32
NOT_A_NUMBER = F32(np.nan)
MAGNITUDE, INFINITE = I32(0x7FFFFFFF), I32(0x7F800000)
TOP, HIGHEST = 127 + 14, 126
"""TOP: exponent that the largest value is scaled to; HIGHEST: largest k for which 2^k and 2^-k are normal."""


@cuda.jit(device=True)
def power_for(peak):
    """Return the 2^k that brings a magnitude, given as its bits, between 2^14 and 2^15, and 2^-k; NaN if it is not
    finite."""
    k = I32(TOP - shift_right(peak, 23))
    k = I32(HIGHEST) if k > HIGHEST else k
    up = bits_to_float(shift_left(I32(127 + k), 23)) if peak < INFINITE else NOT_A_NUMBER
    return up, bits_to_float(shift_left(I32(127 - k), 23))


@cuda.jit(device=True)
def two_halves(a, b):
    """Return the limbs of two numbers: a word with both high limbs and one with both low limbs, the first number in the
    low half of each."""
    p, q = float_to_half(a), float_to_half(b)
    r, s = float_to_half(F32(a - half_to_float(p))), float_to_half(F32(b - half_to_float(q)))
    return I32(p | shift_left(q, 16)), I32(r | shift_left(s, 16))
