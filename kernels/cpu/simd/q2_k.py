"""Row kernels of Q2_K in tier A: blocks of 256 weights in 84 bytes (docs/explanation/model.md 2.3, 10.2).

Plane p (bits 2p, 2p+1 of the 64 code bytes) holds weights 32p..32p+31 of both halves of 128, as four groups of 16. The
dot product of a block is d_x * (d * sum_j s_j dot_j - dmin * sum_j m_j xsum_j), integer sums exact.

A step processes two blocks: ``vpdpbusd`` per plane, two planes packed to words by ``packssdw``, one ``vpdpwssd`` with
the 4-bit scales.

Packed buffer, per 512 inputs: 512 codes in plane order | 16 f32 (d_x, 8 lanes a block) | 32 i16 negated sums. An odd
last block is processed twice, the second time with zero inputs.
"""

from __future__ import annotations

from numba import njit, types

from ...formats import FORMATS
from . import x86
from .fixed import SMALLEST, limbs
from .quantize import make_q8k_pack, sixteen_sums
from .row_kernel import LANES_16, Part, RowKernel, make_rows, pairs_of_256, records
from .vec import (
    JIT,
    F32x8,
    F32x16,
    F32x32,
    Float,
    I8x16,
    I8x32,
    I8x64,
    I16x8,
    I16x16,
    I16x32,
    I32x4,
    I32x16,
    Int,
    Val,
    inline,
)

BLOCK = FORMATS["Q2_K"].block_bytes
_PACKED_TWO = 640


# -- q8k
def _scale_index(plane: int) -> list[int]:
    """Return byte indices of the scales of planes ``plane`` and ``plane``+1, as words in the lanes of
    ``pack_words_512``."""
    index: list[int] = []
    for lane in range(4):
        half, group = divmod(lane, 2)
        for p in (plane, plane + 1):
            index += [8 * half + 2 * p + group, 0x80] * 4  # 0x80: a zero byte
    return index


def _block_dots(k, weights: Val, scales: Val, x: Val) -> Val:
    """Return the lane sums of s_j * code * x over one block."""
    codes = k.load(I8x64, weights + 16)
    quarters = scales.shuffle(list(range(16)) * 4) & 0x0F
    total = zero = k.zero(I32x16)
    for plane in (0, 2):
        first = codes & 3 if plane == 0 else x86.bits_to_low(k, codes, 4, 2)
        second = x86.bits_to_low(k, codes, 2 * plane + 2, 2)
        packed = x86.pack_words_512(
            k,
            x86.dpbusd_512(k, zero, first, k.load(I8x64, x + 64 * plane)),
            x86.dpbusd_512(k, zero, second, k.load(I8x64, x + 64 * plane + 64)),
        )
        words = x86.shuffle_bytes_512(k, quarters, k.const(I8x64, _scale_index(plane)))
        total = x86.dpwssd_512(k, total, packed, words)
    return total


def _two_blocks(k, total: Val, first: Val, second: Val, x: Val) -> Val:
    """Return total + the lane sums of two blocks: scaled dot products in even lanes, scaled mins in odd ones."""
    blocks = first, second
    scales = [k.load(I8x16, w) for w in blocks]
    dots = [_block_dots(k, w, s, x + 256 * i) for i, (w, s) in enumerate(zip(blocks, scales, strict=True))]
    low, high = list(range(8)) + list(range(16, 24)), list(range(8, 16)) + list(range(24, 32))
    folded = dots[0].shuffle(low, dots[1]) + dots[0].shuffle(high, dots[1])
    mins = x86.madd_512(k, scales[0].cat(scales[1]).zext(I16x32) >> 4, k.load(I16x32, x + 576))
    even, odd = [-1, 0] * 8, [0, -1] * 8
    swapped = ((folded & odd) | (mins & even)).shuffle([i ^ 1 for i in range(16)])
    sums = ((folded & even) | (mins & odd)) + swapped
    d_dmin = [k.load(types.int32, w + 80).splat(I32x4) for w in blocks]
    scale = k.half_to_float(d_dmin[0].cat(d_dmin[1]).bits(I16x16)) * k.load(F32x16, x + 512)
    return k.fma(sums.to_float(F32x16), scale, total)


@inline(types.none, Int, Int, Float)
def _finish_pack_a(k, target, half, scale):
    """Store scale lanes and negated sums of block ``half`` (0 or 1) of the pair at ``target``; its codes are stored
    already."""
    k.store(target + 512 + half * 32, scale.splat(F32x8))
    for sub in range(8):
        for part, value in enumerate(sixteen_sums(k, k.load(I8x32, target + half * 256 + _place(sub)))):
            k.store(target + 576 + half * 32 + 4 * sub + 2 * part, k.const(types.int16, 0) - value)


def _place(sub):
    """Return the byte offset of 32 codes: plane p = [weights 32p.. of half 0 | of half 1]."""
    return 64 * (sub & 3) + 32 * (sub >> 2)


# -- float activations: see fixed.py
# A lane of 32 bits holds four weights of each plane, all in one group of 16. Codes are multiplied by their scales as
# bytes (3 * 15 fits), so all planes accumulate in the same lanes. The 16 inputs of a lane share their scale.
_PACKED_FLOAT = 4 * 3 * 64 + 128
_LARGEST = 2_900_000  # 16 products with 45 stay below 2^31


def scaled_planes(k, codes: Val, scales: Val) -> list[Val]:
    """Return four planes of code * scale as unsigned bytes: entry 4 p + c of a table in each 128-bit quarter is c *
    s_p."""
    once: list[int] = []
    twice: list[int] = []
    for quarter in range(4):
        for plane in range(4):
            scale = 8 * (quarter >> 1) + 2 * plane + (quarter & 1)
            once += [0x80, scale, 0x80, scale]  # 0x80: a zero byte
            twice += [0x80, 0x80, scale, scale]
    nibbles = scales.shuffle(list(range(16)) * 4) & 0x0F
    table = x86.shuffle_bytes_512(k, nibbles, k.const(I8x64, once))
    table = table + x86.shuffle_bytes_512(k, nibbles + nibbles, k.const(I8x64, twice))
    places = [codes & 3] + [x86.bits_to_low(k, codes, 2 * plane, 2, above=4 * plane) for plane in (1, 2, 3)]
    return [x86.shuffle_bytes_512(k, table, place) for place in places]


@inline(F32x16, F32x16, Int, Int)
def _add_block_float(k, total, weights, x):
    header = k.load(I8x16, weights)
    planes = scaled_planes(k, k.load(I8x64, weights + 16), header)
    sums = [k.zero(I32x16)] * 3
    for p, plane in enumerate(planes):
        for limb in range(3):
            sums[limb] = x86.dpbusd_512(k, sums[limb], plane, k.load(I8x64, x + 256 * limb + 64 * p))
    dots = (((sums[0] << 8) + sums[1]) << 8) + sums[2]
    tail = k.load(I16x8, weights + BLOCK - 16)
    d = k.half_to_float(tail.shuffle([6] * 16)) * k.load(F32x16, x + 768)
    mins = (header.zext(I32x16) >> 4).to_float(F32x16) * k.load(F32x16, x + 832)
    total = k.fma(dots.to_float(F32x16), d, total)
    return k.fma(mins, k.half_to_float(tail.shuffle([7] * 16)), total)


@inline(types.none, Int, Int)
def _pack_half_float(k, target, x):
    """Store limbs, lane scales and negated sums of 128 inputs, in the lower half of every line at ``target``."""
    runs = [k.load(F32x32, x + 128 * plane) for plane in range(4)]
    largest = k.abs(runs[0])
    for run in runs[1:]:
        largest = k.maximum(k.abs(run), largest)
    for distance in (1, 2):
        largest = k.maximum(largest.shuffle([i ^ distance for i in range(32)]), largest)
    inverse = k.const(F32x32, float(_LARGEST)) / largest
    inverse = k.select(largest.compare(">", float(SMALLEST)), inverse, k.zero(F32x32))
    poison = k.zero(F32x32)
    for plane, run in enumerate(runs):
        poison = poison + run * 0.0
        for limb, part in enumerate(limbs(k, run, inverse)):
            k.store(target + 256 * limb + 64 * plane, part)
        for group in range(2):
            half_sum = k.hsum(run.shuffle(range(16 * group, 16 * group + 16)))
            k.store(target + 832 + 4 * (2 * plane + group), k.const(Float, 0.0) - half_sum)
    scale = largest * (1 / _LARGEST) + k.hsum(poison).splat(F32x32)
    k.store(target + 768, scale.shuffle(range(0, 32, 4)))


@njit(**JIT)
def _pack_float(x, n, buffer):
    for half in range(n // 128):
        _pack_half_float(buffer + (half >> 1) * _PACKED_FLOAT + (half & 1) * 32, x + 512 * half)


FLOAT = RowKernel(
    _pack_float,
    make_rows(LANES_16, 2, Part(256, _add_block_float, BLOCK, _PACKED_FLOAT)),
    records(256, _PACKED_FLOAT),
)

Q8K = RowKernel(
    make_q8k_pack(_PACKED_TWO, _place, _finish_pack_a, pair=1),
    make_rows(LANES_16, 3, *pairs_of_256(_two_blocks, BLOCK, _PACKED_TWO)),
    records(512, _PACKED_TWO),
)
