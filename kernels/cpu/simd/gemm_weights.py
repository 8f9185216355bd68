"""Weight decoders of the int8 GEMM: each decodes 512 weights of a raw row to eight slices of unsigned bytes and 16 lane
scales; ``decode_short`` of a format with blocks of 32 weights decodes 128 to two short records.

Each is an inlined function ``decode(first, _, target, row)``: ``first`` is the address of two adjacent blocks of 256
weights (of 16 blocks of 32 for Q8_0), ``target`` that of a record of decoded weights, ``row`` the number 0..2 of the
row in it. ``gemm_tile`` has the layout of records, ``gemm_inputs`` the matching order of the inputs.
"""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats import Format
from . import blocks_32, iq2_xxs, q2_k, q4_k, q8_0
from .gemm_tile import ROWS, SHORT_WEIGHT, WEIGHT_CODES
from .vec import F32x16, I8x16, I8x32, I8x64, I16x8, I16x16, I32x8, I32x16, Int, Val, inline


def _store(k, target: Val, row: Val, slices: list[Val], scales: Val, mins: tuple[Val, ...] = ()) -> None:
    place = target + row * 64
    for s, codes in enumerate(slices):
        k.store(place + 64 * ROWS * s, codes)
    for i, vector in enumerate((scales, *mins)):
        k.store(place + (WEIGHT_CODES + 64 * ROWS * i), vector)


def _transpose(groups: list[Val]) -> list[Val]:
    """Transpose 16 groups of 8 dwords (I32x8): slice s holds dword s of every group, group g in lane g."""
    slices = [groups[i].cat(groups[i + 8]) for i in range(8)]
    for width in (4, 2, 1):
        swapped = list(slices)
        for i in range(8):
            if not i & width:
                low: list[int] = []
                high: list[int] = []
                for base in range(0, 16, 2 * width):
                    for vector in (0, 16):
                        low += range(vector + base, vector + base + width)
                        high += range(vector + base + width, vector + base + 2 * width)
                swapped[i] = slices[i].shuffle(low, slices[i | width])
                swapped[i | width] = slices[i].shuffle(high, slices[i | width])
        slices = swapped
    return slices


def _halves(k, blocks: list[Val], at: int) -> Val:
    """Return the f16 ``at`` bytes after the start of each of 16 blocks."""
    return k.half_to_float(k.gather(I16x16, [k.load(types.int16, block + at) for block in blocks]))


def decode_32(fmt: Format) -> Any:
    """Make the decoder of 16 blocks of one of the formats of ``blocks_32``; lane = block."""
    codes = blocks_32.CODES[fmt.name]

    @inline(types.none, Int, Int, Int, Int)
    def decode(k, first, _, target, row):
        blocks = [first + fmt.block_bytes * i for i in range(16)]
        fours = [codes.planes(k, blocks[i : i + 4]) for i in range(0, 16, 4)]
        slices = []
        for quarters in zip(*fours, strict=True):
            a, b, c, d = (quarter.bits(I32x16) for quarter in quarters)
            for word in range(4):
                lanes = range(word, 32, 4)
                slices.append(a.shuffle(lanes, b).cat(c.shuffle(lanes, d)))
        mins = (_halves(k, blocks, 2),) if codes.minimum else ()
        _store(k, target, row, [s.bits(I8x64) for s in slices], _halves(k, blocks, 0), mins)

    return decode


def decode_short(fmt: Format) -> Any:
    """Make the decoder of four blocks of such a format to two short records, one after the other; lanes 0-7 are those
    of a record's first block."""
    codes = blocks_32.CODES[fmt.name]

    @inline(types.none, Int, Int, Int)
    def decode(k, first, target, row):
        blocks = [first + fmt.block_bytes * i for i in range(4)]
        low, high = (plane.bits(I32x16) for plane in codes.planes(k, blocks))
        halves = blocks_32.heads(k, blocks)
        for i in range(2):
            place = target + row * 64 + SHORT_WEIGHT * i
            lanes = [8 * i + 4 * block + 16 * half + word for block in (0, 1) for half in (0, 1) for word in range(4)]
            k.store(place, low.shuffle(lanes, high))
            for number in range(1 + codes.minimum):
                k.store(
                    place + 64 * ROWS * (1 + number), halves.shuffle([4 * i + number] * 8 + [4 * i + 2 + number] * 8)
                )

    return decode


@inline(types.none, Int, Int, Int, Int)
def decode_q8_0(k, first, _, target, row):
    """Decode 16 blocks of 34 bytes; lane = block; bytes w + 128."""
    blocks = [first + q8_0.BLOCK * i for i in range(16)]
    slices = _transpose([k.load(I32x8, block + 2) for block in blocks])
    _store(k, target, row, [(s.bits(I8x64) ^ -128) for s in slices], _halves(k, blocks, 0))


@inline(types.none, Int, Int, Int, Int)
def decode_q4_k(k, first, _, target, row):
    """Decode two blocks to bytes that are the codes; lanes 0-7 are the first block's sub-blocks, 8-15 the second's."""
    second = first + q4_k.BLOCK
    headers = k.load(I8x16, first), k.load(I8x16, second)
    groups = []
    for block in (first, second):
        for part in range(4):
            codes = k.load(I8x32, block + 16 + 32 * part)
            groups += [(codes & 0x0F).bits(I32x8), ((codes >> 4) & 0x0F).bits(I32x8)]
    words = q4_k.unpack_headers(k, *headers)

    def lanes(start: int, half: int) -> Val:
        chosen = words.shuffle([16 * block + start + i for block in range(2) for i in range(8)])
        scale = headers[0].bits(I16x8).shuffle([half] * 8 + [8 + half] * 8, headers[1].bits(I16x8))
        return chosen.zext(I32x16).to_float(F32x16) * k.half_to_float(scale)

    mins = k.zero(F32x16) - lanes(8, 1)
    _store(k, target, row, [s.bits(I8x64) for s in _transpose(groups)], lanes(0, 0), (mins,))


@inline(types.none, Int, Int, Int, Int)
def decode_q2_k(k, first, _, target, row):
    """Decode two blocks: slice 2 p + h has 32 weights of plane p, half h of the first, then of the second; bytes code *
    scale."""
    planes, mins, scales = [], [], []
    for block in (first, first + q2_k.BLOCK):
        header, tail = k.load(I8x16, block), k.load(I16x8, block + q2_k.BLOCK - 16)
        planes.append(q2_k.scaled_planes(k, k.load(I8x64, block + 16), header))
        dmin = k.half_to_float(tail.shuffle([7] * 16))
        mins.append(k.zero(F32x16) - (header.zext(I32x16) >> 4).to_float(F32x16) * dmin)
        scales.append(tail)
    lower, upper = list(range(32)) + list(range(64, 96)), list(range(32, 64)) + list(range(96, 128))
    slices = [a.shuffle(half, b) for a, b in zip(*planes, strict=True) for half in (lower, upper)]
    d = k.half_to_float(scales[0].shuffle([6] * 8 + [14] * 8, scales[1]))
    _store(k, target, row, slices, d, tuple(mins))


@inline(types.none, Int, Int, Int, Int)
def decode_iq2_xxs(k, first, _, target, row):
    """Decode two blocks: lane 2 j + b has group j of block b; byte i of slice s is weight s of octet i, as 43 + w."""
    _store(k, target, row, *iq2_xxs.decode_two(k, first, first + iq2_xxs.BLOCK))
