"""Copies of float32 values as binary16, for kernels that take them where nothing is lost.

Modes that round to small formats leave values that binary16 holds exactly; others do not, and what follows must then do
without the copy. Only the device knows: ``halve`` sets a flag, which both kernels ask.
"""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for
from ..driver.intrinsics import float_to_half, half_to_float, shift_left
from ..driver.shim import cuda

F32, I32, U64 = np.float32, np.int32, np.uint64


@cuda.jit
def clear_kernel(lossy):
    """Set the flag to 0."""
    lossy[0] = 0


@cuda.jit
def halve_kernel(halves, lossy, x, size):
    """Copy two values a thread to binary16, side by side in a word."""
    i = I32(cuda.grid(1))
    if i < size:
        a, b = F32(x[U64(2 * i)]), F32(x[U64(2 * i + 1)])
        p, q = float_to_half(a), float_to_half(b)
        halves[U64(i)] = I32(p | shift_left(q, 16))
        if half_to_float(p) != a or half_to_float(q) != b:  # of a NaN, too
            lossy[0] = I32(1)


def halve(stream, halves, lossy, x, size):
    """Copy x (2 ``size``,) float32 to ``halves`` (size,), two binary16 a word; lossy[0] is 0 if nothing was lost."""
    clear_kernel[1, 1, stream](lossy)
    halve_kernel[blocks_for(size, 256), 256, stream](halves, lossy, x, size)
