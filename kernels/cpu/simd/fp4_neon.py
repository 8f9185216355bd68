"""FP4 rows in tier N (NEON), for float inputs: blocks of 32 codes with an E8M0 scale, joined (MXFP4) or apart.

Inputs become 24-bit fixed point in three limbs, with one scale for 32 of them (``fixed``); the ``sdot`` of all limbs
add up in one register, which is shifted between them. Lane i has the weights 4 i .. 4 i + 3 of each half of a block, so
both layouts give the same bits.

Packed buffer, per 32 inputs: 32 high, 32 middle and 32 low limbs in the order of the weight decoder | f32 scale.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ...formats import FORMATS
from ...formats.apart import FP4
from .decode import block_scale
from .fixed import limbs, scale_of_32
from .float_rows import apart_rows
from .neon import dots_16, look_up
from .row_kernel import COUNTS, LANES_4, Part, RowKernel, make_rows, records
from .vec import JIT, F32x4, F32x32, Float, I8x16, I32x4, Int, Val, inline

MXFP4 = FORMATS["MXFP4"]
BLOCK, _PACKED = 32, 100

assert MXFP4.small is not None
_TABLE = [int(w) for w in MXFP4.small.table]
_PAIRS = [2 * (i % 4 // 2 * 4 + i // 4) + i % 2 for i in range(16)]
"""Bytes of a block whose codes lie apart, two weights each, in the order of lanes."""
_APART = [2 * byte + high for high in range(2) for byte in _PAIRS]
"""Weights in the order of the inputs that meet them."""


def _sums(k, total: Val, codes: Val, scale: Val, x: Val) -> Val:
    """Return total + the lane sums of a block with these 16 bytes of codes."""
    weights = [look_up(k, k.const(I8x16, _TABLE), part) for part in (codes & 0x0F, codes >> 4)]
    dots = k.zero(I32x4)
    for limb in range(3):
        dots = dots << 8 if limb else dots
        for half, part in enumerate(weights):
            dots = dots_16(k, dots, part, k.load(I8x16, x + (32 * limb + 16 * half)))
    # first the scale of the inputs: the product of both scales may be too small for a float
    return k.fma(dots.to_float(F32x4) * k.load(Float, x + 96).splat(F32x4), scale, total)


@inline(F32x4, F32x4, Int, Int)
def _add_joined(k, total, weights, x):
    return _sums(k, total, k.load(I8x16, weights + 1), block_scale(k, MXFP4, weights, F32x4), x)


@inline(F32x4, F32x4, Int, Int, Int)
def _add_apart(k, total, codes, scale, x):
    return _sums(k, total, k.load(I8x16, codes).shuffle(_PAIRS), block_scale(k, FP4.codes, scale, F32x4), x)


def _pack(order: list[int]) -> Any:
    """Make ``pack`` for weights in this order."""

    @inline(types.none, Int, Int, Float, Float)
    def store_block(k, target, x, scale, inverse):
        for limb, codes in enumerate(limbs(k, k.load(F32x32, x), inverse.splat(F32x32))):
            k.store(target + 32 * limb, codes.shuffle(order))
        k.store(target + 96, scale)

    @njit(**JIT)
    def pack(x, n, buffer):
        for _ in range(n // BLOCK):
            scale, inverse = scale_of_32(x)
            store_block(buffer, x, scale, inverse)
            buffer += _PACKED
            x += 4 * BLOCK

    return pack


_SIZE = MXFP4.block_bytes
JOINED = RowKernel(
    _pack(list(range(BLOCK))),
    make_rows(LANES_4, 1, Part(BLOCK, _add_joined, _SIZE, _PACKED)),
    records(BLOCK, _PACKED),
)
APART = RowKernel(_pack(_APART), apart_rows(FP4, LANES_4, _add_apart, _PACKED, COUNTS), records(BLOCK, _PACKED))
