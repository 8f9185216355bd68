"""Pack inputs for the GEMM: panels of four tokens in the order of the weight decoders (tier A).

A panel is a sequence of chunks of 512 inputs; a chunk is one record (``gemm_tile``), or three with float activations
(high, middle and low limb, see ``fixed``), then the sums for the mins, [vector][4 tokens][16] f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import njit, types

from .blocks_32 import CODES
from .fixed import LARGEST, SMALLEST, limbs, scale_of_32
from .gemm_tile import INPUT_CODES, INPUT_RECORD, MIN_BYTES, SHORT_INPUT, SHORT_MOST, TOKENS
from .quantize import a8_scale, q8k_scale, round_to_codes, sixteen_sums
from .vec import JIT, F32x8, F32x32, Float, I32x8, I32x16, Int, Val, inline

_SCALES = INPUT_CODES
_FACTORS = 65536.0, 256.0, 1.0
"""Factors of the scales of the three limbs (``fixed``), high to low."""
_OFFSETS = INPUT_CODES + 64 * TOKENS


class Order(NamedTuple):
    """The order in which a weight decoder stores a chunk of weights, which inputs must follow; for formats of which a
    32-bit lane holds 32 adjacent weights.

    lane      function from the number of a group of 32 inputs (0..15, a Val) to the lane that holds it
    octets    whether word s of a lane holds input s of four groups of 8, instead of four adjacent inputs
    bias      number that the decoder adds to every weight
    scale     factor for the inputs' scales, which makes up for one in the decoder's scales
    mins      1 if the format has a minimum per 32 weights
    """

    lane: Callable[[Any], Any]
    octets: bool
    bias: int
    scale: float
    mins: int


ORDERS = {
    "Q4_K": Order(lambda group: group, False, 0, 1.0, 1),
    "IQ2_XXS": Order(lambda group: (group & 7) * 2 + (group >> 3), True, 43, 2.0**-30, 0),
} | {name: Order(lambda group: group, False, codes.bias, 1.0, int(codes.minimum)) for name, codes in CODES.items()}


def chunk_bytes(mins: int, passes: int) -> int:
    """Return the bytes of one chunk of four packed tokens."""
    return passes * INPUT_RECORD + mins * MIN_BYTES


# -- 32 adjacent inputs a lane
def _put(k, order: Order, record: Val, token: Val, lane: Val, codes: Val, scale: Val) -> Val:
    """Store one lane of a record; return the sum of the codes as int32."""
    at = record + token * 64 + lane * 4
    if order.octets:
        codes = codes.shuffle([8 * octet + i for i in range(8) for octet in range(4)])
    for s in range(8):
        k.store(at + 64 * TOKENS * s, codes.bits(I32x8).lane(s))
    low, high = sixteen_sums(k, codes)
    total = low.sext(types.int32) + high.sext(types.int32)
    k.store(at + _SCALES, scale * order.scale)
    k.store(at + _OFFSETS, total * -order.bias)
    return total


def _group(order: Order, passes: int):
    """Make an inlined function that packs 32 inputs as one lane: of int8 codes, or of each of three limbs."""

    @inline(types.none, Int, Int, Int, Int, Float, Float)
    def pack(k, chunk, token, group, x, scale, inverse):
        values = k.load(F32x32, x)
        rounded = passes == 1
        parts = [round_to_codes(k, values, inverse)] if rounded else limbs(k, values, inverse.splat(F32x32))
        for part, factor in zip(parts, _FACTORS[-1:] if rounded else _FACTORS, strict=True):
            total = _put(k, order, chunk, token, order.lane(group), part, scale * factor)
            chunk = chunk + INPUT_RECORD
        if order.mins:
            k.store(chunk + token * 64 + group * 4, total.to_float(Float) * scale if rounded else k.hsum(values))

    return pack


def _short_group(order: Order):
    """Make an inlined function that packs 32 rounded inputs as half ``group & 1`` of a short record."""

    @inline(types.none, Int, Int, Int, Int, Float, Float)
    def pack(k, chunk, token, group, x, scale, inverse):
        codes = round_to_codes(k, k.load(F32x32, x), inverse)
        low, high = sixteen_sums(k, codes)
        total = low.sext(types.int32) + high.sext(types.int32)
        at = chunk + (group >> 1) * SHORT_INPUT + token * 64 + (group & 1) * 32
        k.store(at, codes)
        k.store(at + 64 * TOKENS, scale.splat(F32x8))
        k.store(at + 128 * TOKENS, total * -order.bias)
        if order.mins:
            k.store(at + 192 * TOKENS, total.to_float(Float) * scale)

    return pack


# -- Q2_K: slice 2 p + h, 32 bytes of each of the two blocks
def _put_sums(k, sums: Val, token: Val, block: Val, sub: int, low: Val, high: Val) -> None:
    """Store the sums of the two groups of 16 in sub-block ``sub``."""
    for i, value in enumerate((low, high)):
        k.store(sums + block * (64 * TOKENS) + token * 64 + (8 * sub + 4 * i), value)


def _q2_k_place(sub: int) -> int:
    """Return the offset of the slice that holds inputs 32 sub .. 32 sub + 31 of a block."""
    return 64 * TOKENS * (2 * (sub & 3) + (sub >> 2))


@inline(types.none, Int, Int, Int, Int, Float, Float)
def _q2_k_rounded(k, chunk, token, block, x, scale, inverse):
    at = chunk + token * 64 + block * 32
    for sub in range(8):
        codes = round_to_codes(k, k.load(F32x32, x + 128 * sub), inverse)
        k.store(at + _q2_k_place(sub), codes)
        low, high = (part.sext(types.int32).to_float(Float) * scale for part in sixteen_sums(k, codes))
        _put_sums(k, chunk + INPUT_RECORD, token, block, sub, low, high)
    k.store(at + _SCALES, scale.splat(F32x8))
    k.store(at + _OFFSETS, k.zero(I32x8))


@inline(types.none, Int, Int, Int, Int)
def _q2_k_float(k, chunk, token, block, x):
    """Pack a block of floats: a lane holds four adjacent inputs of each run of 32, which share a scale."""
    runs = [k.load(F32x32, x + 128 * sub) for sub in range(8)]
    largest, poison = k.zero(F32x32), k.zero(F32x32)
    for run in runs:
        largest, poison = k.maximum(k.abs(run), largest), poison + run * 0.0
    for distance in (1, 2):
        largest = k.maximum(largest.shuffle([i ^ distance for i in range(32)]), largest)
    inverse = k.const(F32x32, float(LARGEST)) / largest
    inverse = k.select(largest.compare(">", float(SMALLEST)), inverse, k.zero(F32x32))
    scale = (largest * (1 / LARGEST) + k.hsum(poison).splat(F32x32)).shuffle(range(0, 32, 4))
    at = chunk + token * 64 + block * 32
    for sub, run in enumerate(runs):
        for i, limb in enumerate(limbs(k, run, inverse)):
            k.store(at + (INPUT_RECORD * i + _q2_k_place(sub)), limb)
        low, high = (k.hsum(run.shuffle(range(16 * g, 16 * g + 16))) for g in range(2))
        _put_sums(k, chunk + 3 * INPUT_RECORD, token, block, sub, low, high)
    for i, factor in enumerate(_FACTORS):
        k.store(at + (INPUT_RECORD * i + _SCALES), scale * factor)
        k.store(at + (INPUT_RECORD * i + _OFFSETS), k.zero(I32x8))


# -- a token's inputs
@inline(types.none, Int, Int)
def _clear_record(k, record, token):
    for line in range(0, INPUT_RECORD, 64 * TOKENS):
        k.store(record + token * 64 + line, k.zero(I32x16))


_clear_line = inline(types.none, Int, Int)(lambda k, target, token: k.store(target + token * 64, k.zero(I32x16)))


def make_clear(mins: int, passes: int):
    """Make the function ``clear(chunk, token)``, which zeroes one token of one chunk."""

    @njit(**JIT)
    def clear(chunk, token):
        for i in range(passes):
            _clear_record(chunk + INPUT_RECORD * i, token)
        for i in range(mins):
            _clear_line(chunk + INPUT_RECORD * passes + MIN_BYTES * i, token)

    return clear


def make_pack(fmt: str, act: str):
    """Make the function ``pack_chunk(chunk, token, x, count)``, which packs ``count`` inputs (up to 512) at ``x`` into
    one chunk; with fewer than 512 the chunk must have been cleared."""
    if (fmt, act) == ("Q2_K", "float"):

        @njit(**JIT)
        def pack_blocks(chunk, token, x, count):
            for block in range(count // 256):
                _q2_k_float(chunk, token, block, x + 1024 * block)

        return pack_blocks
    scale_of, inputs = {"float": (scale_of_32, 32), "a8": (a8_scale, 32), "q8k": (q8k_scale, 256)}[act]
    step = _q2_k_rounded if fmt == "Q2_K" else _group(ORDERS[fmt], 3 if act == "float" else 1)
    few, most = (_short_group(ORDERS[fmt]), SHORT_MOST) if act == "a8" else (step, 0)
    size = 256 if fmt == "Q2_K" else 32  # inputs of a step, of which those with the same scale follow each other
    steps = inputs // size

    @njit(**JIT)
    def pack_chunk(chunk, token, x, count):
        for number in range(count // inputs):
            scale, inverse = scale_of(x + 4 * inputs * number)
            for group in range(steps * number, steps * (number + 1)):
                if count <= most:
                    few(chunk, token, group, x + 4 * size * group, scale, inverse)
                else:
                    step(chunk, token, group, x + 4 * size * group, scale, inverse)

    return pack_chunk
