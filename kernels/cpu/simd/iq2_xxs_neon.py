"""IQ2_XXS rows in tiers N and I (NEON), for Q8_K and float activations; the block and its dot product: ``iq2_xxs``.

Magnitudes and signs (+1 or -1) of an octet are loaded from tables of 2 KB and 1 KB; all indices are fields of the 64
bits of a group. Groups add up in one register as in ``q4_k_neon``.

Packed buffer, per 256 inputs: 256 codes | f32 (d_x / 8); for float inputs ``fixed_neon``.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ...formats import FORMATS
from ...formats.iq2_xxs import GRID, SIGNS
from .fixed_neon import LANES_BYTES, inputs_16, lanes_total, make_lanes_pack
from .neon import as_it_is, dots_16, entry
from .quantize import make_q8k_pack
from .row_kernel import LANES_4, TWO_AT_MOST, Part, RowKernel, make_rows, records
from .vec import F32x4, Float, I8x8, I32x4, Int, Val, inline

BLOCK = FORMATS["IQ2_XXS"].block_bytes
_PACKED = 256 + 4
_MAGNITUDES, _SIGNS = (np.ascontiguousarray(table).view(np.int64)[:, 0].tolist() for table in (GRID, SIGNS))


def _octet(k, tables: tuple[Val, Val], word: Val, place: int) -> Val:
    """Return the eight weights of octet ``place`` of a group, by the 64 bits of the group."""
    fields = (word >> 8 * place) & 0xFF, (word >> 32 + 7 * place) & 0x7F
    magnitudes, signs = (entry(k, I8x8, table, field) for table, field in zip(tables, fields, strict=True))
    return as_it_is(k, magnitudes * signs)


def _differences(k, weights: Val) -> list[Val]:
    """Return 2 ls + 1 of the groups 0 to 3 and 4 to 7, each less that of the group behind it; the last stay whole."""
    result = []
    for half in range(2):
        first, second = (k.load(I32x4, weights + (2 + 32 * half + 16 * i)) for i in range(2))
        scales = (first.shuffle([1, 3, 5, 7], second) >> 27) | 1
        result.append(as_it_is(k, scales - scales.shuffle([1, 2, 3, 4], k.zero(I32x4))))
    return result


def _lane_sums(k, weights: Val, x: Val, limbs: int) -> list[Val]:
    """Return sum_g (2 ls_g + 1) dot_g in four lanes, for each limb of the packed inputs."""
    tables = k.table("iq2_xxs_magnitudes", "i64", _MAGNITUDES), k.table("iq2_xxs_signs", "i64", _SIGNS)
    sums = [k.zero(I32x4)] * limbs
    for half, factors in enumerate(_differences(k, weights)):
        dots = [k.zero(I32x4)] * limbs
        for j in range(4):
            group = 4 * half + j
            word = k.load(Int, weights + (2 + 8 * group))
            for i in range(2):
                first, second = (_octet(k, tables, word, 2 * i + place) for place in range(2))
                octets = first.cat(second)
                for limb, inputs in enumerate(inputs_16(k, x, 2 * group + i, limbs)):
                    dots[limb] = dots_16(k, dots[limb], octets, inputs)
            factor = factors.shuffle([j] * 4)
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
    """Store the scale of a block whose codes are stored already."""
    k.store(target + 256, scale * 0.125)


# -- float activations: see fixed_neon.py
@inline(F32x4, F32x4, Int, Int)
def _add_float(k, total, weights, x):
    """Return total + the lane sums of one block."""
    d = k.half_to_float(k.load(types.int16, weights)) * 0.125
    return k.fma(lanes_total(k, _lane_sums(k, weights, x, 3), x + (LANES_BYTES - 16)), d.splat(F32x4), total)


FLOAT = RowKernel(
    make_lanes_pack(LANES_BYTES),
    make_rows(LANES_4, 2, Part(256, _add_float, BLOCK, LANES_BYTES), counts=TWO_AT_MOST),
    records(256, LANES_BYTES),
)

Q8K = RowKernel(
    make_q8k_pack(_PACKED, lambda sub: 32 * sub, _finish),
    make_rows(LANES_4, 2, Part(256, _add, BLOCK, _PACKED)),
    records(256, _PACKED),
)
