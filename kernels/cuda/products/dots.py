"""Products of units of 32 weights with int8 inputs, in as few instructions as possible: this is what each lane of a
mat-vec does per row.

A format has two device functions:

    prepare(scale, t, j) -> (scale, t)     once per unit j and its inputs, for all rows: the scale of the inputs'
                                           block and the sums of 16 codes, in the form ``dot`` needs
    dot(words, at, skew, j, x0, ..., x7, t, tables)    a row's unit times its inputs, without ``scale``

The integer sums are bit for bit those of decoding (``units``) and multiplying, with less work: codes are not shifted
but stay where they are in their byte, and are multiplied as unsigned bytes that are too large by a power of two; group
scales multiply integer sums instead of codes; sums for the minima are prepared once for all rows. All sums, divided by
the powers of two that they are multiples of, stay below 2^24, so converting them to float does not round. Formats
without functions of their own use ``decode``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import (
    bits_to_float,
    dp2a_codes,
    dp2a_low,
    dp4a,
    dp4a_codes,
    half_to_float,
    permute_bytes,
    read4,
    shift_left,
    shift_right,
    word_at,
    words_at,
)
from ..driver.shim import cuda
from .decoding import Unit
from .units import EIGHTH, LOW2, LOW4, UNITS, half_at, iq2_xxs_selectors, selected

F32, I32 = np.float32, np.int32
ZERO = F32(0)
SIXTEENTH, SIXTY_FOURTH = F32(1 / 16), F32(1 / 64)
SECOND2, THIRD2, FOURTH2 = I32(0x0C0C0C0C), I32(0x30303030), I32(-0x3F3F3F40)
NO_CARRY = I32(~0x00030000)
MINIMA = I32(0xF0F0)


class Dot(NamedTuple):
    """The two device functions of a format."""

    prepare: Callable[..., Any]
    dot: Callable[..., Any]


@cuda.jit(device=True)
def _as_they_are(scale, t, j):
    return scale, t


@cuda.jit(device=True)
def _q2_k_prepare(scale, t, j):
    """Multiply the scale by 1/64, because all sums in ``_q2_k`` are 64 times too large: the minima are 16 times too
    large as upper nibbles, so their sums of codes are multiplied by 4 here."""
    return F32(scale * SIXTY_FOURTH), I32(shift_left(t, 2) & NO_CARRY)


@cuda.jit(device=True)
def _q2_k(words, at, skew, j, x0, x1, x2, x3, x4, x5, x6, x7, t, tables):
    half, m = j >> 2, j & 3
    code = at + 32 * half + 8 * m
    v0, v1 = word_at(words, code + 16), word_at(words, code + 20)
    a = dp4a_codes(I32(v1 & LOW2), x1, dp4a_codes(I32(v0 & LOW2), x0, 0))
    b = dp4a_codes(I32(v1 & SECOND2), x3, dp4a_codes(I32(v0 & SECOND2), x2, 0))
    c = dp4a_codes(I32(v1 & THIRD2), x5, dp4a_codes(I32(v0 & THIRD2), x4, 0))
    d = dp4a_codes(I32(v1 & FOURTH2), x7, dp4a_codes(I32(v0 & FOURTH2), x6, 0))
    # scales of groups 8 half + 2 k + m // 2: every second byte of two words
    s = permute_bytes(word_at(words, at + 8 * half), word_at(words, at + 8 * half + 4), 0x6420 + (m >> 1) * 0x1111)
    # b, c and d are 4, 16 and 64 times too large
    total = I32(a * I32(shift_left(s, 6) & 0x3C0))
    total = I32(total + b * I32(shift_right(s, 4) & 0xF0))
    total = I32(total + c * I32(shift_right(s, 14) & 0x3C))
    total = I32(total + d * I32(shift_right(s, 24) & 0xF))
    minima = I32(shift_right(word_at(words, at + 4 * (j >> 1)), (j & 1) << 4) & MINIMA)
    scale = word_at(words, at + 80)
    p = half_to_float(scale) * F32(total)
    return p - half_to_float(shift_right(scale, 16)) * F32(dp2a_codes(t, minima, 0))


@cuda.jit(device=True)
def _q4_k_prepare(scale, t, j):
    """Multiply the scale by 1/16 for odd units, whose codes are upper nibbles; add the sums of both halves, which share
    a minimum."""
    both = I32((t >> 16) + I32(shift_left(t, 16) >> 16))
    return (F32(scale * SIXTEENTH), I32(both << 4)) if j & 1 else (scale, both)


@cuda.jit(device=True)
def _q4_k(words, at, skew, j, x0, x1, x2, x3, x4, x5, x6, x7, t, tables):
    code = at + 16 + 32 * (j >> 1)
    nibbles = I32(LOW4 << ((j & 1) << 2))
    v0, v1, v2, v3 = words_at(words, code)
    v4, v5, v6, v7 = words_at(words, code + 16)
    total = dp4a_codes(I32(v1 & nibbles), x1, dp4a_codes(I32(v0 & nibbles), x0, 0))
    total = dp4a_codes(I32(v3 & nibbles), x3, dp4a_codes(I32(v2 & nibbles), x2, total))
    total = dp4a_codes(I32(v5 & nibbles), x5, dp4a_codes(I32(v4 & nibbles), x4, total))
    total = dp4a_codes(I32(v7 & nibbles), x7, dp4a_codes(I32(v6 & nibbles), x6, total))
    head, first, second, third = words_at(words, at)
    # 6-bit scales: units 0 to 3 have theirs in a byte, the others a nibble here and two bits above those of 0 to 3
    late = I32(j >> 2)
    bits, more, place = I32(63 - 48 * late), I32(48 * late), j & 3
    both = I32(place + (place << 4))  # selects the byte with the low bits and the one with the upper two
    s = permute_bytes(first, third, both + 4 * late)
    m = permute_bytes(second, third, both + 4 * late)
    s = I32((s & bits) | (shift_right(s, 10) & more))
    m = I32((shift_right(m, 4 * late) & bits) | (shift_right(m, 10) & more))
    p = half_to_float(head) * F32(I32(total * s))
    return p - half_to_float(shift_right(head, 16)) * F32(I32(m * t))


@cuda.jit(device=True)
def _iq2_xxs_prepare(scale, t, j):
    return F32(scale * EIGHTH), t


@cuda.jit(device=True)
def _iq2_xxs(words, at, skew, j, x0, x1, x2, x3, x4, x5, x6, x7, t, tables):
    a, b, c, d, signs = iq2_xxs_selectors(words, at, skew, j, tables)
    total = dp4a(selected(shift_right(a, 16)), x1, dp4a(selected(a), x0, 0))
    total = dp4a(selected(shift_right(b, 16)), x3, dp4a(selected(b), x2, total))
    total = dp4a(selected(shift_right(c, 16)), x5, dp4a(selected(c), x4, total))
    total = dp4a(selected(shift_right(d, 16)), x7, dp4a(selected(d), x6, total))
    # 2 ls + 1: the upper four bits doubled, plus one
    return half_at(words, at, skew) * F32(I32(total * I32(shift_right(signs, 27) | 1)))


@cache
def dot_of(fmt: str) -> Dot:
    """Return the functions of a format."""
    return OWN.get(fmt) or Dot(_as_they_are, _decoded(fmt))


def _decoded(fmt: str) -> Callable[..., Any]:
    """Make ``dot`` for any format, by decoding to signed bytes."""
    unit = UNITS[fmt]
    decode, minima, halves = unit.decode, unit.minima, unit.halves

    @cuda.jit(device=True)
    def dot(words, at, skew, j, x0, x1, x2, x3, x4, x5, x6, x7, t, tables):
        q0, q1, q2, q3, q4, q5, q6, q7, d, s, t_scale, low, m = decode(words, at, skew, j, tables)
        f, g = d * F32(s), d * F32(t_scale)
        i = dp4a(q3, x3, dp4a(q2, x2, dp4a(q1, x1, dp4a(q0, x0, 0))))
        if halves:
            p = f * F32(i) + g * F32(dp4a(q7, x7, dp4a(q6, x6, dp4a(q5, x5, dp4a(q4, x4, 0)))))
        else:
            p = f * F32(dp4a(q7, x7, dp4a(q6, x6, dp4a(q5, x5, dp4a(q4, x4, i)))))
        if minima:
            p -= low * F32(dp2a_low(t, m, 0))
        return p

    return dot


OWN = {
    "Q2_K": Dot(_q2_k_prepare, _q2_k),
    "Q4_K": Dot(_q4_k_prepare, _q4_k),
    "IQ2_XXS": Dot(_iq2_xxs_prepare, _iq2_xxs),
}
"""The formats that have hand-written functions."""


# --- float inputs

BYTE_BIAS, EXPONENT_23 = np.int32(-0x7F7F7F80), np.int32(0x4B000000)
BIASED = np.float32(2**23 + 128)


@cuda.jit(device=True)
def _signed_byte(biased, selector):
    """Convert a byte to float: place it in the low bits of 2^23 + 128 + byte."""
    return bits_to_float(permute_bytes(biased, EXPONENT_23, selector)) - BIASED


@cuda.jit(device=True)
def _float_dot(q, x, total):
    """Return total + four signed bytes times four floats, given as words."""
    biased = np.int32(q ^ BYTE_BIAS)
    total += _signed_byte(biased, 0x7540) * bits_to_float(x[0])
    total += _signed_byte(biased, 0x7541) * bits_to_float(x[1])
    total += _signed_byte(biased, 0x7542) * bits_to_float(x[2])
    total += _signed_byte(biased, 0x7543) * bits_to_float(x[3])
    return total


def float_unit_of(unit: Unit) -> Callable[..., Any]:
    """Make a device function that multiplies unit j of a row by the float inputs from index ``x`` on; t0 and t1 are the
    sums of the inputs' two halves, for minima."""
    decode, column, minima, halves = unit.decode, unit.column, unit.minima, unit.halves

    @cuda.jit(device=True)
    def product(words, at, skew, j, codes, x, t0, t1):
        q0, q1, q2, q3, q4, q5, q6, q7, d, s, t, low, m = decode(words, at, skew, j, words)
        f, g = d * F32(s), d * F32(t)
        p = _float_dot(q0, read4(codes, x + column(j, 0)), ZERO)
        p = _float_dot(q1, read4(codes, x + column(j, 1)), p)
        p = _float_dot(q2, read4(codes, x + column(j, 2)), p)
        p = _float_dot(q3, read4(codes, x + column(j, 3)), p)
        first = ZERO
        if halves:
            first = f * p
            p = ZERO
        p = _float_dot(q4, read4(codes, x + column(j, 4)), p)
        p = _float_dot(q5, read4(codes, x + column(j, 5)), p)
        p = _float_dot(q6, read4(codes, x + column(j, 6)), p)
        p = _float_dot(q7, read4(codes, x + column(j, 7)), p)
        p = p * (g if halves else f)
        if minima:
            p -= low * (F32(m & 255) * t0 + F32(m >> 8) * t1)
        return first + p

    return product
