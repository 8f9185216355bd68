"""IQ2_XXS rows in tier N (NEON), for Q8_K and float activations; the block and its dot product: ``iq2_xxs``.

    1. The eight codes of an octet are loaded from a table of 2 KB; ``zip1`` puts two octets of a group side by side.
    2. Signs, of 16 octets at once: 7-bit fields are moved to bytes, the eighth is their parity. A 16-bit lane has the
       signs of two octets; ``mul`` by it shifts them left by another amount in each lane, so that the top bit of every
       byte is the sign of its weight.
    3. ``sri`` puts that bit below the code, and ``tbl`` makes a weight of it.
    4. Groups add up in one register as in ``q4_k_neon``.

Packed buffer, per 256 inputs: 256 codes, of 16 the first and the second eight alternating | f32 (d_x / 8); for float
inputs ``fixed.FOUR`` in that order.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ...formats import FORMATS
from ...formats.iq2_xxs import GRID, MAGNITUDES
from .fixed import FOUR, LIMBS_BYTES, inputs_16, make_lanes_pack
from .neon import as_it_is, dots_16, entry, insert_left, insert_right, look_up
from .quantize import make_q8k_pack
from .row_kernel import LANES_4, TWO_AT_MOST, rows_of_256
from .vec import F32x4, Float, I8x8, I8x16, I8x32, I16x8, I32x4, Int, Val, inline

BLOCK = FORMATS["IQ2_XXS"].block_bytes
_PACKED = 256 + 4
_ALTERNATELY = [i // 2 + 8 * (i % 2) for i in range(16)]
"""Which of 16 inputs comes at each place."""
_ORDER = [at + i for at in (0, 16) for i in _ALTERNATELY]
_CODES = np.ascontiguousarray(2 * np.searchsorted(MAGNITUDES, GRID).astype(np.int8)).view(np.int64)[:, 0].tolist()
_WEIGHTS = [sign * m for m in (*MAGNITUDES, *[0] * 5) for sign in (1, -1)]
"""The weight of each code: twice the number of a magnitude, plus one if negative."""


def _signs(k, words: Val) -> Val:
    """Return a byte for each octet of four groups, by their words: bit i is the sign of weight i."""
    halves = insert_left(k, words, words >> 14, 16).bits(I16x8)
    sevens = insert_left(k, halves, halves >> 7, 8).bits(I8x16)  # and a bit too much in bit 7, which counts twice
    return sevens ^ (k.call("llvm.ctpop.v16i8", I8x16, sevens) << 7)


def _sixteen(k, index: Val, signs: Val) -> Val:
    """Return the weights of two octets, weight i of both side by side.

    index   address of their two indices: loading each byte costs less than taking them out of a word
    signs   the sign of each weight in the top bit of its byte, other bits below
    """
    table = k.table("iq2_xxs_codes", "i64", _CODES)
    first, second = (entry(k, I8x8, table, k.load(types.int8, index + i).zext(Int)) for i in range(2))
    codes = first.shuffle(_ALTERNATELY, second)
    return look_up(k, k.const(I8x16, _WEIGHTS), insert_right(k, codes, signs, 7))


def _lane_sums(k, weights: Val, x: Val, limbs: int) -> list[Val]:
    """Return sum_g (2 ls_g + 1) dot_g in four lanes, for each limb of the packed inputs."""
    steps = as_it_is(k, k.const(I16x8, [1 << 7 - i for i in range(8)]))  # a constant would make it shifts
    loaded = [k.load(I32x4, weights + (2 + 16 * i)) for i in range(4)]
    k.forget_loads()  # a load of the indices is cheaper than moving them out of a vector
    words = [loaded[i].shuffle([1, 3, 5, 7], loaded[i + 1]) for i in (0, 2)]
    scales = [(four >> 27) | 1 for four in words]
    behind = [four.shuffle([1, 2, 3, 4], after) for four, after in zip(scales, (scales[1], k.zero(I32x4)), strict=True)]
    factors = [four - after for four, after in zip(scales, behind, strict=True)]
    signs = [_signs(k, four).bits(I16x8) for four in words]
    sums = dots = [k.zero(I32x4)] * limbs
    for group in range(8):
        half, j = divmod(group, 4)
        for pair in range(2):
            spread = (steps * signs[half].shuffle([2 * j + pair] * 8)).bits(I8x16)
            values = _sixteen(k, weights + (2 + 8 * group + 2 * pair), spread)
            inputs = inputs_16(k, x, 2 * group + pair, limbs)
            dots = [dots_16(k, dot, values, limb) for dot, limb in zip(dots, inputs, strict=True)]
        factor = factors[half].shuffle([j] * 4)
        sums = [total + dot * factor for total, dot in zip(sums, dots, strict=True)]
    return sums


@inline(F32x4, F32x4, Int, Int)
def _add(k, total, weights, x):
    """Return total + the lane sums of one block."""
    (sums,) = _lane_sums(k, weights, x, 1)
    d = k.half_to_float(k.load(types.int16, weights)) * k.load(Float, x + 256)
    return k.fma(sums.to_float(F32x4), d.splat(F32x4), total)


@inline(types.none, Int, Int, Float)
def _finish(k, target, half, scale):
    """Bring the codes of a record into order, and store the scale."""
    for sub in range(8):
        k.store(target + 32 * sub, k.load(I8x32, target + 32 * sub).shuffle(_ORDER))
    k.store(target + 256, scale * 0.125)


# -- float activations: see fixed.py
@inline(F32x4, F32x4, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    d = k.half_to_float(k.load(types.int16, weights)) * 0.125
    return k.fma(FOUR.total(k, _lane_sums(k, weights, x, 3), x + LIMBS_BYTES), d.splat(F32x4), total)


_PACK_FLOAT = make_lanes_pack(FOUR, FOUR.block_bytes, order=_ORDER)

FLOAT = rows_of_256(LANES_4, 2, _add_float, BLOCK, _PACK_FLOAT, FOUR.block_bytes, TWO_AT_MOST)
Q8K = rows_of_256(LANES_4, 2, _add, BLOCK, make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish), _PACKED)
