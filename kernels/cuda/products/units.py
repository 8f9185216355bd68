"""Decoders of the block formats for CUDA: generated from the declarations (``decoding``), and hand-written ones for the
formats that matter most.

A *unit* is 32 weights of a block, which one thread decodes. Q2_K and IQ2_XXS are written by hand, because a thread is
faster with 32 weights that are not adjacent, and with look-up tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats import FORMATS
from ...formats.codebooks import GRID, MAGNITUDES, SIGNS
from ..driver.intrinsics import funnel_right, half_to_float, permute_bytes, shift_left, shift_right, word_at, words_at
from ..driver.shim import cuda
from .decoding import Unit, Unsupported, straight, unit_of

I32 = np.int32
LOW2, LOW4, LOW6 = np.int32(0x03030303), np.int32(0x0F0F0F0F), np.int32(0x3F3F3F3F)
HIGH2_OF_6 = np.int32(0x30303030)
POSITIVE = np.int32(sum(m << (8 * i) for i, m in enumerate(MAGNITUDES)))
NEGATIVE = np.int32(sum((256 - m) << (8 * i) for i, m in enumerate(MAGNITUDES)))
EIGHTH = np.float32(0.125)
NONE, ONE = np.float32(0), np.int32(1)


@cuda.jit(device=True)
def half_at(words, at, skew):
    """Load a binary16 at an even address."""
    return half_to_float(shift_right(word_at(words, at), skew << 3))


@cuda.jit(device=True)
def _q2_k_column(j, i):
    """Return the number in the block of the first weight in word i of unit j. Bits 2k, 2k+1 of code byte b belong to
    weight 32 k + b (of a half of 128 weights); a thread takes 8 bytes and all four k."""
    return 128 * (j >> 2) + 32 * (i >> 1) + 8 * (j & 3) + 4 * (i & 1)


@cuda.jit(device=True)
def _q2_k(words, at, skew, j, tables):
    half, m = j >> 2, j & 3
    code = at + 32 * half + 8 * m
    v0, v1 = word_at(words, code + 16), word_at(words, code + 20)
    # scales of the groups 8 half + 2 k + m // 2: every second byte of two words
    even = (m >> 1) << 3
    s0 = shift_right(word_at(words, at + 8 * half), even)
    s1 = shift_right(word_at(words, at + 8 * half + 4), even)
    a, b, c, d = s0 & 15, shift_right(s0, 16) & 15, s1 & 15, shift_right(s1, 16) & 15
    # a code times its scale is at most 45, so the four products in a word do not overflow their bytes
    minima = shift_right(word_at(words, at + 4 * (j >> 1)), (j & 1) << 4)
    scale = word_at(words, at + 80)
    return (
        np.int32((v0 & LOW2) * a),
        np.int32((v1 & LOW2) * a),
        np.int32((shift_right(v0, 2) & LOW2) * b),
        np.int32((shift_right(v1, 2) & LOW2) * b),
        np.int32((shift_right(v0, 4) & LOW2) * c),
        np.int32((shift_right(v1, 4) & LOW2) * c),
        np.int32((shift_right(v0, 6) & LOW2) * d),
        np.int32((shift_right(v1, 6) & LOW2) * d),
        half_to_float(scale),
        ONE,
        ONE,
        half_to_float(shift_right(scale, 16)),
        np.int32(shift_right(minima, 4) & 0x0F0F),
    )


@cuda.jit(device=True)
def _q4_k(words, at, skew, j, tables):
    high = (j & 1) << 2
    code = at + 16 + 32 * (j >> 1)
    v0, v1, v2, v3 = words_at(words, code)
    v4, v5, v6, v7 = words_at(words, code + 16)
    first, second, third = word_at(words, at + 4), word_at(words, at + 8), word_at(words, at + 12)
    # compute both variants and select: lanes of a warp differ in j, so a branch would execute both anyway
    late_scales = I32((third & LOW4) | (shift_right(first, 2) & HIGH2_OF_6))
    late_minima = I32((shift_right(third, 4) & LOW4) | (shift_right(second, 2) & HIGH2_OF_6))
    scales = I32(first & LOW6) if j < 4 else late_scales
    minima = I32(second & LOW6) if j < 4 else late_minima
    place = (j & 3) << 3
    m = shift_right(minima, place) & 63
    head = word_at(words, at)
    return (
        np.int32(shift_right(v0, high) & LOW4),
        np.int32(shift_right(v1, high) & LOW4),
        np.int32(shift_right(v2, high) & LOW4),
        np.int32(shift_right(v3, high) & LOW4),
        np.int32(shift_right(v4, high) & LOW4),
        np.int32(shift_right(v5, high) & LOW4),
        np.int32(shift_right(v6, high) & LOW4),
        np.int32(shift_right(v7, high) & LOW4),
        half_to_float(head),
        np.int32(shift_right(scales, place) & 63),
        ONE,
        half_to_float(shift_right(head, 16)),
        np.int32(m * 0x0101),
    )


def _iq2_xxs_table() -> np.ndarray:
    """Make selectors for ``permute_bytes``, which have a nibble per weight: 256 for the codebook's magnitudes, then 128
    for the signs."""
    magnitude = np.searchsorted(np.array(MAGNITUDES), GRID.astype(np.int64))
    nibbles = np.concatenate((magnitude, np.where(SIGNS < 0, 4, 0))).astype(np.uint64)
    return (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(axis=1).astype(np.uint32).view(np.int32)


COPY_BYTES = 4 * 32
"""Bytes from one entry of a table to the next: each lane of a warp has its own copy, which avoids bank conflicts."""
SIGNS_AT = 256 * COPY_BYTES
INDEX_BITS, SIGN_BITS = np.int32(255 * COPY_BYTES), np.int32(127 * COPY_BYTES)


@cuda.jit(device=True)
def _octet(index, signs, lane_at, tables):
    """Return the selector for a group of 8 signed weights: a nibble of magnitude and sign for each. ``index`` and
    ``signs`` come multiplied by COPY_BYTES, with other bits around them; ``lane_at`` is the byte offset of this lane's
    copy within an entry."""
    return np.int32(
        word_at(tables, (index & INDEX_BITS) | lane_at) | word_at(tables, ((signs & SIGN_BITS) | lane_at) + SIGNS_AT)
    )


@cuda.jit(device=True)
def iq2_xxs_selectors(words, at, skew, j, tables):
    """Return the selectors of the four groups of 8 weights of unit j, and its word of signs, whose top four bits are
    the scale."""
    i = at + 8 * j
    w0, w1, w2 = word_at(words, i), word_at(words, i + 4), word_at(words, i + 8)
    n = (skew << 3) + 16
    index, signs = funnel_right(w0, w1, n), funnel_right(w1, w2, n)
    lane_at = cuda.threadIdx.x << 2
    return (
        _octet(shift_left(index, 7), shift_left(signs, 7), lane_at, tables),
        _octet(shift_right(index, 1), signs, lane_at, tables),
        _octet(shift_right(index, 9), shift_right(signs, 7), lane_at, tables),
        _octet(shift_right(index, 17), shift_right(signs, 14), lane_at, tables),
        signs,
    )


@cuda.jit(device=True)
def selected(octet):
    """Return the four signed bytes that the lower half of a selector (``octet``, for 8 weights) stands for.

    An instruction takes one constant operand: POSITIVE is made opaque to the compiler, which would otherwise reload the
    other one for each.
    """
    return np.int32(permute_bytes(np.int32(POSITIVE ^ (cuda.threadIdx.x >> 5)), NEGATIVE, octet))


@cuda.jit(device=True)
def _iq2_xxs(words, at, skew, j, tables):
    a, b, c, d, signs = iq2_xxs_selectors(words, at, skew, j, tables)
    return (
        selected(a),
        selected(shift_right(a, 16)),
        selected(b),
        selected(shift_right(b, 16)),
        selected(c),
        selected(shift_right(c, 16)),
        selected(d),
        selected(shift_right(d, 16)),
        half_at(words, at, skew) * EIGHTH,
        np.int32(shift_right(signs, 27) | 1),  # the upper four bits doubled, plus one
        ONE,
        NONE,
        np.int32(0),
    )


def _generated() -> dict[str, Unit]:
    """Generate decoders for all formats for which that is possible, except those with blocks of an odd number of bytes:
    tensor-core tiles do not read rows that begin at odd bytes."""
    units = {}
    for name, fmt in FORMATS.items():
        if fmt.block_bytes % 2:
            continue
        try:
            units[name] = unit_of(fmt)
        except Unsupported:
            continue
    return units


def _by_hand(name: str, **fields: Any) -> Unit:
    fmt = FORMATS[name]
    return Unit(name, fmt.block_bytes, fmt.block_elems // 32, fmt.activation, **fields)


GENERATED = _generated()
"""Generated decoders, by name of the format."""

BY_HAND = {
    "Q2_K": _by_hand("Q2_K", decode=_q2_k, column=_q2_k_column, minima=True),
    "Q4_K": _by_hand("Q4_K", decode=_q4_k, column=straight, minima=True, scaled=True),
    "IQ2_XXS": _by_hand("IQ2_XXS", decode=_iq2_xxs, column=straight, scaled=True, table=_iq2_xxs_table()),
}
"""Hand-written decoders, by name of the format; they are used instead of the generated ones."""

UNITS: dict[str, Unit] = GENERATED | BY_HAND
"""The decoder of each block format, by name."""
