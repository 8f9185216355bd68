"""Row kernels of FP4 weights for float inputs in tier A: blocks of 32 codes with an E8M0 scale, which are stored
together (MXFP4) or apart.

Inputs become 24-bit fixed point in three limbs, with one scale for 32 of them (``fixed``), so that integer dot products
take 64 codes at once. A step takes 128 weights: 16 lanes of 32 bits with eight weights each, in the order of the row;
a lane's sum is exact, so both layouts give the same bits. Codes are looked up as 12 + w, w = twice the value of the
code; the 12 is taken back by a number that the packed inputs hold.

Packed buffer, per 128 inputs: 3 limbs of 2 x 64 bytes | 16 f32 scales | 16 i32 offsets. Steps of 64 and 32 weights at
the end of a row have their own 512 bytes, filled up with zeros.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from ...formats import FORMATS
from ...formats.apart import FP4
from . import x86
from .decode import block_scale
from .fixed import limbs, scale_of_32
from .row_kernel import LANES_16, Part, RowKernel, make_rows
from .vec import JIT, F32x16, F32x32, Float, I8x16, I8x64, I16x32, I32x16, Int, Val, Vec, inline

MXFP4 = FORMATS["MXFP4"]
BLOCK, STEP = 32, 512
_BIAS = 12
_SCALES, _OFFSETS = 6 * 64, 7 * 64

assert MXFP4.small is not None
_TABLE = [int(w) + _BIAS for w in MXFP4.small.table]
_LOW, _HIGH = [_TABLE[i & 15] for i in range(64)], [_TABLE[i >> 2] for i in range(64)]

# Weights of a block, in the order of the bytes that meet them: 16 in the first vector of a limb, 16 in the second.
_APART = [*range(0, BLOCK, 2), *range(1, BLOCK, 2)]
_JOINED = [8 * lane + start + i for start in (0, 4) for lane in range(4) for i in range(4)]


def _bytes(k, pieces: list[Val]) -> Val:
    """Join one, two or four I8x16 to an I8x64 that is filled up with zeros."""
    pieces = pieces + [k.zero(I8x16)] * (4 - len(pieces))
    return pieces[0].cat(pieces[1]).cat(pieces[2].cat(pieces[3]))


def _weights(k, codes: Val) -> tuple[Val, Val]:
    """Return 12 + w of the low and of the high codes of 64 bytes. The look-up takes six bits, so nothing is masked."""
    shifted = (codes.bits(I16x32) >> 2).bits(I8x64)  # the high code in bits 2 to 5
    return x86.permute_bytes(k, k.const(I8x64, _LOW), codes), x86.permute_bytes(k, k.const(I8x64, _HIGH), shifted)


def _sums(k, total: Val, pair: tuple[Val, Val], scales: Val, x: Val) -> Val:
    """Return total + the lane sums of one step."""
    dots = k.zero(I32x16)
    for limb in range(3):
        dots = dots << 8 if limb else dots
        for half, weights in enumerate(pair):
            dots = x86.dpbusd_512(k, dots, weights, k.load(I8x64, x + 64 * (2 * limb + half)))
    dots = dots + k.load(I32x16, x + _OFFSETS)
    # first the scale of the inputs: the product of both scales may be too small for a float
    return k.fma(dots.to_float(F32x16) * k.load(F32x16, x + _SCALES), scales, total)


def _step_apart(blocks: int) -> Any:
    """Make the step for ``blocks`` blocks whose codes and scales are stored apart.

    A scale of 255 gives infinity. The scale of 2^-127, which has no exponent bits, counts as 0.
    """
    kind = {1: types.int8, 2: types.int16, 4: types.int32}[blocks]

    @inline(F32x16, F32x16, Int, Int, Int)
    def add(k, total, codes, scales, x):
        whole = _bytes(k, [k.load(I8x16, codes + 16 * b) for b in range(blocks)])
        # byte b of four scales to the exponent bits of lanes 4 b .. 4 b + 3, by rotation
        word = k.load(kind, scales)
        word = (word if blocks == 4 else word.zext(types.int32)).splat(I32x16)
        turns = k.const(I32x16, [(23 - 8 * (lane // 4)) % 32 for lane in range(16)])
        bits = k.call("llvm.fshl.v16i32", I32x16, word, word, turns) & 0x7F800000
        return _sums(k, total, _weights(k, whole), bits.bits(F32x16), x)

    return add


def _step_joined(blocks: int) -> Any:
    """Make the step for ``blocks`` blocks of MXFP4."""

    @inline(F32x16, F32x16, Int, Int)
    def add(k, total, weights, x):
        at = [weights + MXFP4.block_bytes * b for b in range(blocks)]
        low, high = _weights(k, _bytes(k, [k.load(I8x16, block + 1) for block in at]))
        # lane i of a block: weights 8 i .. 8 i + 3, and the next four
        first, second = (
            low.bits(I32x16).shuffle([4 * b + i for b in range(4) for i in places], high.bits(I32x16)).bits(I8x64)
            for places in ((0, 2, 16, 18), (1, 3, 17, 19))
        )
        each = [block_scale(k, MXFP4, block, Vec("f32", 4)) for block in at]
        each += [k.zero(Vec("f32", 4))] * (4 - blocks)
        scales = each[0].cat(each[1]).cat(each[2].cat(each[3]))
        return _sums(k, total, (first, second), scales, x)

    return add


def _pack(order: list[int], unit: float) -> Any:
    """Make ``pack`` for weights in this order; ``unit`` is the value of w = 1 at scale 1."""

    @inline(types.none, Int, Int, Int, Float, Float)
    def store_block(k, target, block, x, scale, inverse):
        total = k.zero(Vec("i32", 4))
        for limb, codes in enumerate(limbs(k, k.load(F32x32, x), inverse.splat(F32x32))):
            at = target + block * 16 + 128 * limb
            k.store(at, codes.shuffle(order[:16]))
            k.store(at + 64, codes.shuffle(order[16:]))
            wide = codes.sext(Vec("i32", 32))
            eights = [wide.shuffle(range(i, 32, 8)) for i in range(8)]
            total = total + sum(eights[1:], eights[0]) * (-_BIAS << 8 * (2 - limb))
        k.store(target + block * 16 + _OFFSETS, total)
        k.store(target + block * 16 + _SCALES, (scale * unit).splat(Vec("f32", 4)))

    @inline(types.none, Int)
    def clear(k, target):
        for line in range(0, STEP, 64):
            k.store(target + line, k.zero(I32x16))

    @njit(**JIT)
    def pack(x, n, buffer):
        blocks = n // BLOCK
        while blocks > 0:
            count = 4 if blocks >= 4 else blocks & 2 if blocks & 2 else 1
            if count < 4:
                clear(buffer)
            for block in range(count):
                scale, inverse = scale_of_32(x)
                store_block(buffer, block, x, scale, inverse)
                x += 4 * BLOCK
            buffer += STEP
            blocks -= count

    return pack


@njit(**JIT)
def _packed_bytes(n):
    blocks = n // BLOCK
    return (blocks // 4 + (blocks // 2) % 2 + blocks % 2) * STEP


@inline(Float, F32x16)
def _total(k, sums):
    """Return the sum of all lanes; NaN where it is infinite."""
    total = k.hsum(sums)
    return total + (total - total)


def _parts(step: Any, block_bytes: int) -> list[Part]:
    return [Part(blocks * BLOCK, step(blocks), blocks * block_bytes, STEP) for blocks in (4, 2, 1)]


APART = RowKernel(
    _pack(_APART, 0.5),
    make_rows(LANES_16._replace(total=_total), 1, *_parts(_step_apart, 16), apart=FP4, twice=True),
    _packed_bytes,
)
JOINED = RowKernel(_pack(_JOINED, 1.0), make_rows(LANES_16, 2, *_parts(_step_joined, MXFP4.block_bytes)), _packed_bytes)
