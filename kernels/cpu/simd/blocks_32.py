"""Row kernels in tier A of formats with blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL for float inputs and
those rounded to A8, Q8_0 for float ones (docs/explanation/model.md 2.3, 10.2).

A step processes four blocks. Two registers of 64 unsigned bytes, ``bias`` above the weights' codes, hold weights 0-15
and 16-31 of each block, so that all eight products of an int32 lane share a scale: ``vpdpbusd`` adds them up for each
limb of the inputs (``fixed``; one for A8). Sums of 6-bit codes and 24-bit inputs fit into 32 bits; those of 8-bit
codes are taken in two parts, of the high and middle limb and of the low one.

Packed buffer, per 128 inputs: for each limb 64 inputs of the first register, 64 of the second | 16 f32 (input scales) |
16 f32 (sums of the lanes' inputs) with a minimum, else 16 i32 (the negated ones of their codes, times ``bias``; in two
parts 16 more, of the low limb). One or two records with zeros follow for the last 32 to 96 inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import njit, types

from ...formats import FORMATS, Format
from ...formats.format import Levels
from . import x86
from .fixed import limbs, scale_of_32
from .quantize import a8_scale, round_to_codes
from .row_kernel import LANES_16, Part, RowKernel, make_rows
from .vec import JIT, F32x16, F32x32, Float, I8x16, I8x64, I16x8, I32x4, I32x16, I32x32, Int, Val, Vec, inline

_BITS, _F32x4 = Vec("i1", 64), Vec("f32", 4)
_Planes = Callable[[Any, list[Val]], list[Val]]


class Codes(NamedTuple):
    """How the blocks of a format are decoded.

    planes   function that returns the two registers of four blocks, given by their addresses
    bias     number that the registers' bytes are above the codes
    minimum  whether a block has a minimum
    parts    in how many parts the products with float inputs are added up
    """

    planes: _Planes
    bias: int
    minimum: bool
    parts: int


def _quarters(k, blocks: list[Val], at: int) -> Val:
    """Load 16 bytes of each of four blocks, ``at`` bytes from its start."""
    a, b, c, d = (k.load(I8x16, block + at) for block in blocks)
    return a.cat(b).cat(c.cat(d))


def _nibbles(at: int) -> _Planes:
    def planes(k, blocks: list[Val]) -> list[Val]:
        both = _quarters(k, blocks, at)
        return [both & 0x0F, x86.bits_to_low(k, both, 4, 4)]

    return planes


def _five_bits(at: int) -> _Planes:
    """Make ``planes`` of codes whose fifth bits precede the nibbles."""
    low_bits = _nibbles(at)

    def planes(k, blocks: list[Val]) -> list[Val]:
        values = []
        for half, codes in enumerate(low_bits(k, blocks)):
            words = [
                k.load(types.int16, block + (at - 4 + 2 * half)).zext(Int) << 16 * i for i, block in enumerate(blocks)
            ]
            bits = (words[0] | words[1]) | (words[2] | words[3])
            values.append(k.select(bits.bits(_BITS), codes + 16, codes))
        return values

    return planes


def _levels(k, blocks: list[Val]) -> list[Val]:
    small = FORMATS["IQ4_NL"].small
    assert isinstance(small, Levels)
    table = k.const(I8x64, [value + 127 for value in small.values] * 4)
    return [x86.shuffle_bytes_512(k, table, index) for index in _nibbles(2)(k, blocks)]


def _bytes(k, blocks: list[Val]) -> list[Val]:
    return [_quarters(k, blocks, at) ^ -128 for at in (2, 18)]


CODES = {
    "Q4_0": Codes(_nibbles(2), 8, False, 1),
    "Q4_1": Codes(_nibbles(4), 0, True, 1),
    "Q5_0": Codes(_five_bits(6), 16, False, 1),
    "Q5_1": Codes(_five_bits(8), 0, True, 1),
    "IQ4_NL": Codes(_levels, 127, False, 2),
    "Q8_0": Codes(_bytes, 128, False, 2),
}


def heads(k, blocks: list[Val]) -> Val:
    """Return two f16 of each of four blocks: the scale, and the minimum if the format has one."""
    words = k.gather(I32x4, [k.load(types.int32, block) for block in blocks])
    return k.half_to_float(words.bits(I16x8))


def _dots(k, codes: Codes, planes: list[Val], x: Val, passes: int) -> Val:
    """Return the products of the lanes, in units of the inputs' scales, as floats."""
    starts = x + (128 * passes + 64)

    def add(total: Val, limb: int) -> Val:
        for i, plane in enumerate(planes):
            total = x86.dpbusd_512(k, total, plane, k.load(I8x64, x + (128 * limb + 64 * i)))
        return total

    total = k.zero(I32x16) if codes.minimum or passes > 1 else k.load(I32x16, starts)
    total = add(total, 0)
    for limb in range(1, 4 - codes.parts if passes > 1 else 1):
        total = total << 8
        if limb == 3 - codes.parts and not codes.minimum:
            total = total + k.load(I32x16, starts)
        total = add(total, limb)
    if passes == 1 or codes.parts == 1:
        return total.to_float(F32x16)
    low = add(k.load(I32x16, starts + 64), 2)
    return k.fma(total.to_float(F32x16), k.const(F32x16, 256), low.to_float(F32x16))


def _four_blocks(k, codes: Codes, passes: int, total: Val, blocks: list[Val], x: Val) -> Val:
    """Return total + the lane sums of four blocks."""
    halves = heads(k, blocks)
    scale = halves.shuffle([i // 4 * 2 for i in range(16)])
    dots = _dots(k, codes, codes.planes(k, blocks), x, passes)
    total = k.fma(dots, scale * k.load(F32x16, x + 128 * passes), total)
    if not codes.minimum:
        return total
    minimum = halves.shuffle([i // 4 * 2 + 1 for i in range(16)])
    return k.fma(minimum, k.load(F32x16, x + (128 * passes + 64)), total)


def _lane_sums(k, values: Val) -> Val:
    """Add up 32 numbers as the lanes of a block do: four of the first half and four of the second."""
    eight = values.shuffle(range(16)) + values.shuffle(range(16, 32))
    pairs = eight.shuffle(range(0, 16, 2)) + eight.shuffle(range(1, 16, 2))
    return pairs.shuffle(range(0, 8, 2)) + pairs.shuffle(range(1, 8, 2))


def _pack(codes: Codes, passes: int, record: int) -> Any:
    at_scales = 128 * passes

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack_block(k, target, block, x, scale, inverse):
        """Store the 32 inputs at ``x`` as those of one of the four blocks."""
        values = k.load(F32x32, x)
        parts = [round_to_codes(k, values, inverse)] if passes == 1 else limbs(k, values, inverse.splat(F32x32))
        lanes = target + block * 16
        for limb, part in enumerate(parts):
            for half in range(2):
                k.store(lanes + (128 * limb + 64 * half), part.shuffle(range(16 * half, 16 * half + 16)))
        k.store(lanes + at_scales, scale.splat(_F32x4))
        if codes.minimum and passes > 1:
            k.store(lanes + (at_scales + 64), _lane_sums(k, values))
            return
        sums = [_lane_sums(k, part.sext(I32x32)) for part in parts]
        if codes.minimum:
            k.store(lanes + (at_scales + 64), sums[0].to_float(_F32x4) * scale.splat(_F32x4))
            return
        if passes > 1:
            upper, low = (sums[0] << 8) + sums[1], sums[2]
            sums = [(upper << 8) + low] if codes.parts == 1 else [upper, low]
        for i, part in enumerate(sums):
            k.store(lanes + (at_scales + 64 + 64 * i), part * -codes.bias)

    @inline(types.none, Int)
    def clear(k, target):
        for line in range(0, record, 64):
            k.store(target + line, k.zero(I32x16))

    scale_of = a8_scale if passes == 1 else scale_of_32

    @njit(**JIT)
    def pack(x, n, buffer):
        blocks = n >> 5
        while blocks > 0:
            count = 4 if blocks >= 4 else 2 if blocks >= 2 else 1
            if count < 4:
                clear(buffer)
            for block in range(count):
                scale, inverse = scale_of(x)
                pack_block(buffer, block, x, scale, inverse)
                x += 128
            buffer += record
            blocks -= count

    return pack


def kernel(fmt: Format, act: str) -> RowKernel:
    """Make the kernel of one of the formats for A8 or float inputs."""
    codes, passes, size = CODES[fmt.name], 1 if act == "a8" else 3, fmt.block_bytes
    record = 128 * passes + 128 + (64 if passes > 1 and codes.parts == 2 else 0)

    def part(count: int) -> Part:
        places = [size * min(i, count - 1) for i in range(4)]
        add = inline(F32x16, F32x16, Int, Int)(
            lambda k, total, w, x: _four_blocks(k, codes, passes, total, [w + place for place in places], x)
        )
        return Part(32 * count, add, size * count, record)

    @njit(**JIT)
    def packed_bytes(n):
        return ((n >> 7) + ((n >> 6) & 1) + ((n >> 5) & 1)) * record

    rows = make_rows(LANES_16, -(-4 * size // 64), part(4), part(2), part(1))
    return RowKernel(_pack(codes, passes, record), rows, packed_bytes)


KERNELS = {
    (name, act): kernel(FORMATS[name], act)
    for name in CODES
    for act in ("a8", "float")
    if (name, act) != ("Q8_0", "a8")
}
