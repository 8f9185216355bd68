"""Units of the block formats: 32 weights as one lane of a warp decodes them from raw bytes in shared memory.

A format is a ``Unit``: how a block lies in bytes, and a device function ``decode(words, at, odd, j, tables)`` that
gives unit j of the block whose first byte is byte ``at`` (a multiple of 4) of the words, or, if ``odd`` is 2 and not 0,
the second byte after it:

    (q0, ..., q7, f, g, m)     w = f q          weight by weight, q the signed bytes of the words
                               w = f q - g m_h  if ``minima``: m_h byte h of m, for half h of the unit
                               w = f q or g q   if ``halves``: f for the first half of the words, g for the rest

Words q_i hold weights ``column(j, i)`` .. +3 of the block; for most formats that is 32 j + 4 i. Minima are those of
the 16 weights from 32 j and of the 16 after them. The same units feed dot products with integer activations (dp4a),
with floats, and the tiles of tensor-core products, so that a layout is written down once. Layouts: docs/model.md 2.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..formats.iq2_xxs import GRID, MAGNITUDES, SIGNS
from .intrinsics import funnel_right, half_to_float, permute_bytes, shift_left, shift_right, word_at, words_at
from .shim import cuda

I32 = np.int32
LOW2, LOW4, LOW6 = np.int32(0x03030303), np.int32(0x0F0F0F0F), np.int32(0x3F3F3F3F)
HIGH2_OF_6, TOP_BITS = np.int32(0x30303030), np.int32(-0x7F7F7F80)
MINUS_8, MINUS_32 = np.int32(0x78787878), np.int32(0x60606060)
POSITIVE = np.int32(sum(m << (8 * i) for i, m in enumerate(MAGNITUDES)))
NEGATIVE = np.int32(sum((256 - m) << (8 * i) for i, m in enumerate(MAGNITUDES)))
EIGHTH = np.float32(0.125)
ONE = np.float32(1)
NONE = np.float32(0)


class Unit(NamedTuple):
    """A format as kernels decode it. ``table``: words that ``decode`` looks things up in, one copy per lane."""

    name: str
    block_bytes: int
    per_block: int
    decode: Callable[..., Any]
    column: Callable[[Any, Any], Any]
    minima: bool = False
    halves: bool = False
    table: np.ndarray | None = None

    @property
    def activation(self) -> str:
        """The integer rounding of the inputs that goes with it."""
        return "a8" if self.per_block == 1 else "q8k"


@cuda.jit(device=True)
def straight(j, i):
    """Words in the order of the weights."""
    return 32 * j + 4 * i


@cuda.jit(device=True)
def _word(words, at, odd):
    """Four bytes from any even place, and no word that has none of them."""
    return funnel_right(word_at(words, at), word_at(words, at + (odd << 1)), odd << 3)


@cuda.jit(device=True)
def half_at(words, at, odd):
    """A binary16 from an even place."""
    return half_to_float(shift_right(word_at(words, at), odd << 3))


@cuda.jit(device=True)
def _byte(words, at, odd, k):
    """Byte k of a block."""
    i = at + odd + k
    return shift_right(word_at(words, i & ~3), (i & 3) << 3) & 255


@cuda.jit(device=True)
def _q8_0(words, at, odd, j, tables):
    w0, w1, w2, w3, w4 = (
        word_at(words, at),
        word_at(words, at + 4),
        word_at(words, at + 8),
        word_at(words, at + 12),
        word_at(words, at + 16),
    )
    w5, w6, w7, w8 = word_at(words, at + 20), word_at(words, at + 24), word_at(words, at + 28), word_at(words, at + 32)
    # the codes begin 2 bytes behind the scale: 16 bits on in a block at a multiple of 4, a whole word in the others
    n = (odd << 3) + 16
    return (
        funnel_right(w0, w1, n),
        funnel_right(w1, w2, n),
        funnel_right(w2, w3, n),
        funnel_right(w3, w4, n),
        funnel_right(w4, w5, n),
        funnel_right(w5, w6, n),
        funnel_right(w6, w7, n),
        funnel_right(w7, w8, n),
        half_to_float(shift_right(w0, odd << 3)),
        NONE,
        np.int32(0),
    )


@cuda.jit(device=True)
def _below_8(word):
    """Bytes 0..15 less 8: no byte borrows from the next one."""
    return ((word & LOW4) + MINUS_8) ^ TOP_BITS


@cuda.jit(device=True)
def _q4_0(words, at, odd, j, tables):
    # two bytes on: in the same word, or at the start of the next one
    code, late = at + (odd << 1), 2 - odd
    v0, v1 = _word(words, code, late), _word(words, code + 4, late)
    v2, v3 = _word(words, code + 8, late), _word(words, code + 12, late)
    return (
        np.int32(_below_8(v0)),
        np.int32(_below_8(v1)),
        np.int32(_below_8(v2)),
        np.int32(_below_8(v3)),
        np.int32(_below_8(shift_right(v0, 4))),
        np.int32(_below_8(shift_right(v1, 4))),
        np.int32(_below_8(shift_right(v2, 4))),
        np.int32(_below_8(shift_right(v3, 4))),
        half_at(words, at, odd),
        NONE,
        np.int32(0),
    )


@cuda.jit(device=True)
def _q2_k_column(j, i):
    """Bits 2k, 2k+1 of a code byte belong to weight 32 k + its place: a lane takes 8 bytes and all four k."""
    return 128 * (j >> 2) + 32 * (i >> 1) + 8 * (j & 3) + 4 * (i & 1)


@cuda.jit(device=True)
def _q2_k(words, at, odd, j, tables):
    half, m = j >> 2, j & 3
    code = at + 32 * half + 8 * m
    v0, v1 = word_at(words, code + 16), word_at(words, code + 20)
    # scales of the groups 8 half + 2 k + m // 2: every second byte of two words
    even = (m >> 1) << 3
    s0 = shift_right(word_at(words, at + 8 * half), even)
    s1 = shift_right(word_at(words, at + 8 * half + 4), even)
    a, b, c, d = s0 & 15, shift_right(s0, 16) & 15, s1 & 15, shift_right(s1, 16) & 15
    # a code times its scale is at most 45, so the products of a word stay in their bytes
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
        half_to_float(shift_right(scale, 16)),
        np.int32(shift_right(minima, 4) & 0x0F0F),
    )


@cuda.jit(device=True)
def _q4_k(words, at, odd, j, tables):
    high = (j & 1) << 2
    code = at + 16 + 32 * (j >> 1)
    v0, v1, v2, v3 = words_at(words, code)
    v4, v5, v6, v7 = words_at(words, code + 16)
    first, second, third = word_at(words, at + 4), word_at(words, at + 8), word_at(words, at + 12)
    # both ways, then one of them: lanes of a warp differ in j, and a branch would take both with more ado
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
        half_to_float(head) * np.float32(shift_right(scales, place) & 63),
        half_to_float(shift_right(head, 16)),
        np.int32(m * 0x0101),
    )


@cuda.jit(device=True)
def _six(words, low, high, odd, shift4, shift2):
    """Four 6-bit codes less 32 from their low nibbles and their upper two bits."""
    code = (shift_right(_word(words, low, odd), shift4) & LOW4) | shift_left(
        shift_right(_word(words, high, odd), shift2) & LOW2, 4
    )
    return np.int32((code + MINUS_32) ^ TOP_BITS)


@cuda.jit(device=True)
def _signed(byte):
    return np.float32((byte ^ 128) - 128)


@cuda.jit(device=True)
def _q6_k(words, at, odd, j, tables):
    run = j & 3
    low, high = at + 64 * (j >> 2) + 32 * (run & 1), at + 128 + 32 * (j >> 2)
    four, two = (run >> 1) << 2, run << 1
    d = half_at(words, at + 208, odd)
    return (
        _six(words, low, high, odd, four, two),
        _six(words, low + 4, high + 4, odd, four, two),
        _six(words, low + 8, high + 8, odd, four, two),
        _six(words, low + 12, high + 12, odd, four, two),
        _six(words, low + 16, high + 16, odd, four, two),
        _six(words, low + 20, high + 20, odd, four, two),
        _six(words, low + 24, high + 24, odd, four, two),
        _six(words, low + 28, high + 28, odd, four, two),
        d * _signed(_byte(words, at, odd, 192 + 2 * j)),
        d * _signed(_byte(words, at, odd, 193 + 2 * j)),
        np.int32(0),
    )


def _iq2_xxs_table() -> np.ndarray:
    """Selectors for ``permute_bytes``, a nibble a weight: 256 of magnitudes (codebook), then 128 of signs."""
    magnitude = np.searchsorted(np.array(MAGNITUDES), GRID.astype(np.int64))
    nibbles = np.concatenate((magnitude, np.where(SIGNS < 0, 4, 0))).astype(np.uint64)
    return (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(axis=1).astype(np.uint32).view(np.int32)


COPY_BYTES = 4 * 32
"""From one entry of a table to the next: each lane has a copy of its own, so that no two meet in a bank."""
SIGNS_AT = 256 * COPY_BYTES
INDEX_BITS, SIGN_BITS = np.int32(255 * COPY_BYTES), np.int32(127 * COPY_BYTES)


@cuda.jit(device=True)
def _octet(index, signs, own, tables):
    """Selector of eight signed weights: a nibble of magnitude and sign each. Index and signs are multiplied by
    COPY_BYTES, with other bits around them; ``own`` is the lane's place in an entry."""
    return np.int32(
        word_at(tables, (index & INDEX_BITS) | own) | word_at(tables, ((signs & SIGN_BITS) | own) + SIGNS_AT)
    )


@cuda.jit(device=True)
def iq2_xxs_selectors(words, at, odd, j, tables):
    """Four octets and the word of signs of unit j; above the signs, four bits of scale."""
    i = at + 8 * j
    w0, w1, w2 = word_at(words, i), word_at(words, i + 4), word_at(words, i + 8)
    n = (odd << 3) + 16
    index, signs = funnel_right(w0, w1, n), funnel_right(w1, w2, n)
    own = cuda.threadIdx.x << 2
    return (
        _octet(shift_left(index, 7), shift_left(signs, 7), own, tables),
        _octet(shift_right(index, 1), signs, own, tables),
        _octet(shift_right(index, 9), shift_right(signs, 7), own, tables),
        _octet(shift_right(index, 17), shift_right(signs, 14), own, tables),
        signs,
    )


@cuda.jit(device=True)
def selected(octet):
    """The four signed bytes that the lower half of an octet selects. An instruction takes one constant: the other is
    made unknown to the compiler, which would otherwise load it anew for each."""
    return np.int32(permute_bytes(np.int32(POSITIVE ^ (cuda.threadIdx.x >> 5)), NEGATIVE, octet))


@cuda.jit(device=True)
def _iq2_xxs(words, at, odd, j, tables):
    a, b, c, d, signs = iq2_xxs_selectors(words, at, odd, j, tables)
    scale = np.float32(2 * shift_right(signs, 28) + 1)
    return (
        selected(a),
        selected(shift_right(a, 16)),
        selected(b),
        selected(shift_right(b, 16)),
        selected(c),
        selected(shift_right(c, 16)),
        selected(d),
        selected(shift_right(d, 16)),
        half_at(words, at, odd) * (scale * EIGHTH),
        NONE,
        np.int32(0),
    )


UNITS: dict[str, Unit] = {
    unit.name: unit
    for unit in (
        Unit("Q8_0", 34, 1, _q8_0, straight),
        Unit("Q4_0", 18, 1, _q4_0, straight),
        Unit("Q2_K", 84, 8, _q2_k, _q2_k_column, minima=True),
        Unit("Q4_K", 144, 8, _q4_k, straight, minima=True),
        Unit("Q6_K", 210, 8, _q6_k, straight, halves=True),
        Unit("IQ2_XXS", 66, 8, _iq2_xxs, straight, table=_iq2_xxs_table()),
    )
}
"""Formats made of blocks, by name."""
