"""Quantize weights to Q8_0: one f16 scale per 32 weights, in vectors of one block.

Blocks follow ggml bit for bit, so that files are identical whichever program wrote them. Codes use the scale before it
is rounded to f16, and halves are rounded away from zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from ..simd.vec import F32x32, Float, I8x32, I32x32, Int, inline
from ..tasks.lang import JIT, store_f16
from .lanes import export_rows

ONE, ZERO = np.float32(1), np.float32(0)
SMALLEST = np.float32(2.94e-39)
"""Scales below this count as zero: their reciprocals would be infinite."""


_greatest = inline(Float, Int)(lambda k, x: k.fold(k.load(F32x32, x), k.maximum))


_least = inline(Float, Int)(lambda k, x: k.fold(k.load(F32x32, x), k.minimum))


@inline(types.none, Int, Float, Int)
def _store_bytes(k, x, inv, out):
    """Store x * inv as signed bytes, halves away from zero."""
    scaled = k.load(F32x32, x) * inv.splat(F32x32)
    size = k.abs(scaled)
    whole = (size + 0.5).to_int(I32x32).to_float(F32x32)
    # adding 0.5 may round up to the next integer where the fraction is just below one half
    whole = k.select((whole - size).compare(">", 0.5), whole - 1.0, whole)
    codes = k.select(scaled.compare("<", 0.0), k.zero(F32x32) - whole, whole)
    k.store(out, codes.to_int(I32x32).trunc(I8x32))


@njit(**JIT)
def _block(x, importance, out):
    """Quantize 32 floats; importance is ignored."""
    d = max(_greatest(x), -_least(x)) / np.float32(127)
    store_f16(out, d)
    _store_bytes(x, ONE / d if d > SMALLEST else ZERO, out + 2)


export_rows("Q8_0", _block)
