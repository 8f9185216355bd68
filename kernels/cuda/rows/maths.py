"""Device functions on float32: libdevice through ``math`` (at most 2 ulp, no fast approximations).

Comparisons are written so that NaN stays NaN; ``min`` and ``max`` of a GPU drop it.
"""

from __future__ import annotations

import math

import numpy as np

from ..driver.shim import cuda

F32 = np.float32
ZERO, ONE = np.float32(0), np.float32(1)
INFINITY = np.float32(np.inf)
LINEAR_ABOVE, EXP_BELOW = np.float32(20), np.float32(-20)


@cuda.jit(device=True)
def exp32(x):
    return F32(math.exp(F32(x)))


@cuda.jit(device=True)
def log1p32(x):
    return F32(math.log1p(F32(x)))


@cuda.jit(device=True)
def sqrt32(x):
    return F32(math.sqrt(F32(x)))


@cuda.jit(device=True)
def sqrt64(x):
    return math.sqrt(np.float64(x))


@cuda.jit(device=True)
def rint32(x):
    """Round to the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bits."""
    return F32(F32(x + F32(12582912)) - F32(12582912))


@cuda.jit(device=True)
def log2_64(x):
    return math.log2(np.float64(x))


@cuda.jit(device=True)
def sigmoid32(x):
    """Return 1 / (1 + e^-x) without overflow."""
    e = exp32(-abs(x))
    return F32((ONE if x >= ZERO else e) / (ONE + e)) if x == x else x


@cuda.jit(device=True)
def softplus32(x):
    """Return log(1 + e^x) without overflow."""
    if x > LINEAR_ABOVE:
        return x
    if x < EXP_BELOW:
        return exp32(x)
    return log1p32(exp32(x))
