"""Row kernels of Q4_K in tier A: blocks of 256 weights in 144 bytes (docs/explanation/model.md 2.3, 10.2).

Sub-blocks 2p and 2p+1 of 32 share 32 bytes of codes (low and high nibbles). The dot product of a block is d_x * (d *
sum_j s_j dot_j - dmin * sum_j m_j xsum_j), integer sums exact.

A step processes two blocks. A 64-byte load holds sub-blocks 0|2 (low nibbles) and 1|3 (high), the next one 4|6 and 5|7;
the activations are packed in that order. ``vpdpbusd`` sums four products a lane, ``packssdw`` puts two planes into
words, ``vpdpwssd`` multiplies by the 6-bit scales. Both headers are unpacked at once into words [s0..s7 | m0..m7]; the
mins share the last multiply-add: their sums of x are packed negated.

Packed buffer, per 512 inputs: 512 codes | 16 f32 (d_x of each block, 8 lanes) | 32 i16 (8 zeros, 8 sums; per block). An
odd last block is processed twice, the second time with zero inputs.
"""

from __future__ import annotations

from numba import njit, types

from ...formats import FORMATS
from . import x86
from .fixed import limbs, scale_of_32
from .quantize import make_q8k_pack, sixteen_sums
from .row_kernel import LANES_16, PAIR_16, Part, RowKernel, make_rows, pairs_of_256, records
from .vec import JIT, F32x8, F32x16, F32x32, Float, I8x16, I8x32, I8x64, I16x8, I16x32, I32x16, Int, Val, inline

BLOCK = FORMATS["Q4_K"].block_bytes
_PACKED_TWO = 640

# -- q8k
_WORDS = range(32)
_LOW_FOUR = [4, 5, 6, 7]  # offsets of the bytes b[0..3] of the 12 scale bytes in a 16-byte header
_SCALE_SOURCE = [h + i for h in (0, 16) for i in (4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15)]
_UPPER_SOURCE = [h + i for h in (0, 16) for i in _LOW_FOUR * 2 + [8, 9, 10, 11] * 2]


def unpack_headers(k, first: Val, second: Val) -> Val:
    """Unpack two 16-byte headers to words [s0..s7 | m0..m7] of the first block, then of the second."""
    words = first.cat(second).zext(I16x32)
    low = words.shuffle(_SCALE_SOURCE) >> [4 if i % 16 >= 12 else 0 for i in _WORDS]
    low = low & [0x0F if i % 8 >= 4 else 0x3F for i in _WORDS]
    upper = (words.shuffle(_UPPER_SOURCE) >> 2) & [0x30 if i % 8 >= 4 else 0 for i in _WORDS]
    return low | upper


def _scale_words(k, scales: Val, block: int, planes: tuple[int, int, int, int]) -> Val:
    """Return the scales of the four sub-blocks of two packed planes, repeated as ``pack_words_512`` lays them out."""
    a, b, c, d = (16 * block + plane for plane in planes)
    return scales.shuffle(([a] * 4 + [b] * 4) * 2 + ([c] * 4 + [d] * 4) * 2)


def _block_dots(k, scales: Val, block: int, weights: Val, x: Val) -> Val:
    """Return the lane sums of s_j * code * x over one block."""
    total = zero = k.zero(I32x16)
    for part, planes in enumerate(((0, 1, 2, 3), (4, 5, 6, 7))):
        codes = k.load(I8x64, weights + 16 + 64 * part)
        low = x86.dpbusd_512(k, zero, codes & 0x0F, k.load(I8x64, x + 128 * part))
        high = x86.dpbusd_512(k, zero, x86.bits_to_low(k, codes, 4, 4), k.load(I8x64, x + 128 * part + 64))
        packed = x86.pack_words_512(k, low, high)
        total = x86.dpwssd_512(k, total, packed, _scale_words(k, scales, block, planes))
    return total


def _two_blocks(k, total: Val, first: Val, second: Val, x: Val) -> Val:
    """Return total + the lane sums of the blocks at ``first`` and ``second``."""
    headers = k.load(I8x16, first), k.load(I8x16, second)
    scales = unpack_headers(k, *headers)
    dots = [_block_dots(k, scales, block, w, x + 256 * block) for block, w in enumerate((first, second))]
    low, high = list(range(8)) + list(range(16, 24)), list(range(8, 16)) + list(range(24, 32))
    folded = dots[0].shuffle(low, dots[1]) + dots[0].shuffle(high, dots[1])
    mins = x86.madd_512(k, scales, k.load(I16x32, x + 576))
    # fold once more, so that lanes 0-3 of each block hold dots and lanes 4-7 hold mins
    swapped = folded.shuffle([i ^ 4 for i in range(16)])
    mixed = (folded + swapped).shuffle([i + (16 if i & 4 else 0) for i in range(16)], mins)
    halves = headers[0].bits(I16x8).shuffle([0] * 4 + [1] * 4 + [8] * 4 + [9] * 4, headers[1].bits(I16x8))
    return k.fma(mixed.to_float(F32x16), k.half_to_float(halves) * k.load(F32x16, x + 512), total)


@inline(types.none, Int, Int, Float)
def _finish_pack_a(k, target, half, scale):
    """Store scale lanes and negated sums of block ``half`` (0 or 1) of the pair at ``target``; its codes are stored
    already."""
    k.store(target + 512 + half * 32, scale.splat(F32x8))
    k.store(target + 576 + half * 32, k.zero(I16x8))
    for sub_block in range(8):
        low, high = sixteen_sums(k, k.load(I8x32, target + half * 256 + _place(sub_block)))
        k.store(target + 592 + half * 32 + 2 * sub_block, k.const(types.int16, 0) - low - high)


def _place(sub_block):
    """Return the byte offset of a sub-block of 32 codes: planes 0|2, 1|3, 4|6, 5|7."""
    return 64 * ((sub_block >> 2) * 2 + (sub_block & 1)) + 32 * ((sub_block >> 1) & 1)


# -- float activations: see fixed.py
_PACKED_FLOAT = 4 * 3 * 64 + 64


def _float_block(k, total: Val, scales: Val, block: int, weights: Val, x: Val) -> Val:
    """Return total + the lane sums of one block; ``scales`` are the words of ``unpack_headers``."""
    factors = scales.shuffle(range(16 * block, 16 * block + 16)).zext(I32x16).to_float(F32x16)
    halves = k.load(I8x16, weights).bits(I16x8).shuffle([0] * 8 + [1] * 8)
    factors = factors * k.half_to_float(halves) * k.load(F32x16, x + 768)  # d s_j xscale_j, then -dmin m_j xsum_j
    for part in range(2):
        codes = k.load(I8x64, weights + 16 + 64 * part)
        for high, plane in enumerate((codes & 0x0F, x86.bits_to_low(k, codes, 4, 4))):
            at = x + 192 * (2 * part + high)
            dots = k.zero(I32x16)
            for limb in range(3):
                dots = x86.dpbusd_512(k, dots << 8 if limb else dots, plane, k.load(I8x64, at + 64 * limb))
            first = 4 * part + high
            total = k.fma(dots.to_float(F32x16), factors.shuffle([first] * 8 + [first + 2] * 8), total)
    mins = factors.bits(I32x16) & ([0] * 8 + [-1] * 8)
    return total + mins.bits(F32x16)


@inline(PAIR_16.kind, PAIR_16.kind, Int, Int)
def _add_two_float(k, sums, weights, x):
    """Add two adjacent blocks to the running sums of even and of odd blocks."""
    even, odd = k.members(sums)
    second = weights + BLOCK
    scales = unpack_headers(k, k.load(I8x16, weights), k.load(I8x16, second))
    even = _float_block(k, even, scales, 0, weights, x)
    return even, _float_block(k, odd, scales, 1, second, x + _PACKED_FLOAT)


@inline(PAIR_16.kind, PAIR_16.kind, Int, Int)
def _add_one_float(k, sums, weights, x):
    even, odd = k.members(sums)
    header = k.load(I8x16, weights)
    return _float_block(k, even, unpack_headers(k, header, header), 0, weights, x), odd


@inline(types.none, Int, Int, Int, Float, Float)
def _store_limbs(k, target, lane, x, scale, inverse):
    """Store three limbs of 32 inputs at ``target``, 64 bytes apart; scale and negated sum into lanes of their own."""
    values = k.load(F32x32, x)
    for i, part in enumerate(limbs(k, values, inverse.splat(F32x32))):
        k.store(target + 64 * i, part)
    k.store(lane, scale)
    k.store(lane + 32, k.const(Float, 0.0) - k.hsum(values))


@njit(**JIT)
def _pack_float(x, n, buffer):
    for block in range(n // 256):
        target = buffer + block * _PACKED_FLOAT
        for sub in range(8):
            plane = (sub >> 2) * 2 + (sub & 1)
            scale, inverse = scale_of_32(x)
            _store_limbs(target + 192 * plane + 32 * ((sub >> 1) & 1), target + 768 + 4 * sub, x, scale, inverse)
            x += 128


FLOAT = RowKernel(
    _pack_float,
    make_rows(
        PAIR_16,
        4,
        Part(512, _add_two_float, 2 * BLOCK, 2 * _PACKED_FLOAT),
        Part(256, _add_one_float, BLOCK, _PACKED_FLOAT),
    ),
    records(256, _PACKED_FLOAT),
)

Q8K = RowKernel(
    make_q8k_pack(_PACKED_TWO, _place, _finish_pack_a, pair=1),
    make_rows(LANES_16, 4, *pairs_of_256(_two_blocks, BLOCK, _PACKED_TWO)),
    records(512, _PACKED_TWO),
)
