"""Decode the weights that tensor cores multiply next into shared memory, in the layout that they read (``matmat``).

Shared memory holds a lane's operands in pieces of 16 bytes, each loaded when it is used. Lane c of the four that share
a row multiplies word c of a unit (``decoding``), then word c + 4: the order of the products of a sum is free, as long
as weights and inputs agree. A piece of weights has four weights of row r and four of row r + 8. Pieces are stored at
their number XOR ``key_of(row)``, so that those read or written together are in different memory banks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import bits_to_float, put4, shift_left, stream4
from ..driver.shim import cuda
from .limbs import halves_of, three_bfloats
from .units import UNITS

F32, I32 = np.float32, np.int32
ZERO = F32(0)

ROWS = 128
"""Rows per block."""
LIMB = 32 * ROWS
"""Number of words that one limb (``limbs``) of a thread block's weights takes: two units of each row."""


@cuda.jit(device=True)
def key_of(row):
    """Return the number with which pieces of a row are XORed; it differs between rows read or written together."""
    return I32((row & 3) | ((row & 1) << 2))


@cuda.jit(device=True)
def piece_at(to, key, step, u, c):
    """Return the word of piece c of half ``step`` of unit u of two rows, whose pieces begin at ``to``."""
    return I32(to + 4 * ((8 * step + 4 * u + c) ^ key))


@cuda.jit(device=True)
def _put_codes(words, at, upper, lower):
    """Store a piece of four codes of two rows each."""
    p, q = halves_of(upper), halves_of(lower)
    put4(words, at, p[0], q[0], p[1], q[1])


@cache
def codes_of_blocks(fmt: str) -> Callable[..., Any]:
    """Make the device function ``fill`` of a block format: it decodes unit ``number``, which is unit ``u`` of those in
    shared memory, of two rows that begin at bytes ``upper`` and ``lower``, into pieces from word ``to`` on, and returns
    the scales f and g, the minimum's scale low, and the minima m of both. A row of n = 0 weights gives zeros."""
    unit = UNITS[fmt]
    decode, per_block, block_bytes, looks_up = unit.decode, unit.per_block, unit.block_bytes, unit.table is not None
    block_bits = per_block.bit_length() - 1

    @cuda.jit(device=True)
    def read(raw, start, number, n, words):
        if n == 0:
            return I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), ZERO, ZERO, ZERO, I32(0)
        at, j = start + (number >> block_bits) * block_bytes, number & (per_block - 1)
        q0, q1, q2, q3, q4, q5, q6, q7, d, s, t, low, m = decode(raw, at & ~3, at & 3, j, words if looks_up else raw)
        return q0, q1, q2, q3, q4, q5, q6, q7, d * F32(s), d * F32(t), low, m

    @cuda.jit(device=True)
    def fill(raw, upper, lower, number, n, n2, words, to, key, u):
        a0, a1, a2, a3, a4, a5, a6, a7, f, g, low, m = read(raw, upper, number, n, words)
        b0, b1, b2, b3, b4, b5, b6, b7, f2, g2, low2, m2 = read(raw, lower, number, n2, words)
        _put_codes(words, piece_at(to, key, 0, u, 0), a0, b0)
        _put_codes(words, piece_at(to, key, 0, u, 1), a1, b1)
        _put_codes(words, piece_at(to, key, 0, u, 2), a2, b2)
        _put_codes(words, piece_at(to, key, 0, u, 3), a3, b3)
        _put_codes(words, piece_at(to, key, 1, u, 0), a4, b4)
        _put_codes(words, piece_at(to, key, 1, u, 1), a5, b5)
        _put_codes(words, piece_at(to, key, 1, u, 2), a6, b6)
        _put_codes(words, piece_at(to, key, 1, u, 3), a7, b7)
        return (f, g, low, m), (f2, g2, low2, m2)

    return fill


@cuda.jit(device=True)
def _pair16(raw, start, i, n):
    """Load 16-bit weights i and i + 1 at any alignment; weights from n on are zeros."""
    at, word = start + 2 * i, I32(0)
    if i < n:
        word = I32(I32(raw[at]) | I32(raw[at + 1]) << 8)
    if i + 1 < n:
        word = I32(word | I32(raw[at + 2]) << 16 | shift_left(I32(raw[at + 3]), 24))
    return word


@cuda.jit(device=True)
def _eight16(raw, start, i, n):
    """Load weights i to i + 7 as four words; i and n are multiples of 8, ``start`` one of 16 bytes."""
    if i < n:
        return stream4(raw, start + 2 * i)
    return I32(0), I32(0), I32(0), I32(0)


@cuda.jit(device=True)
def _one32(raw, start, i, n):
    """Load a float32 at any alignment."""
    at = start + 4 * i
    if i >= n:
        return ZERO
    low = I32(raw[at]) | I32(raw[at + 1]) << 8 | I32(raw[at + 2]) << 16
    return bits_to_float(I32(low | shift_left(I32(raw[at + 3]), 24)))


@cache
def plain_values(fmt: str, aligned: bool) -> Callable[..., Any]:
    """Make ``fill``, as ``codes_of_blocks`` does, for a format without blocks."""
    wide = fmt == "F32"

    @cuda.jit(device=True)
    def four32(raw, start, i, n):
        """Load weights i to i + 3."""
        if aligned:
            if i >= n:
                return ZERO, ZERO, ZERO, ZERO
            a, b, c, d = stream4(raw, start + 4 * i)
            return bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)
        return (
            _one32(raw, start, i, n), _one32(raw, start, i + 1, n), _one32(raw, start, i + 2, n),
            _one32(raw, start, i + 3, n),
        )  # fmt: skip

    @cuda.jit(device=True)
    def fill(raw, upper, lower, number, n, n2, words, to, key, u):
        for step in range(2):
            first = 32 * number + 16 * step
            if wide:
                for c in range(4):
                    a, b = four32(raw, upper, first + 4 * c, n), four32(raw, lower, first + 4 * c, n2)
                    p, q = three_bfloats(a[0], a[1]), three_bfloats(a[2], a[3])
                    r, s = three_bfloats(b[0], b[1]), three_bfloats(b[2], b[3])
                    at = piece_at(to, key, step, u, c)
                    put4(words, at, p[0], r[0], q[0], s[0])
                    put4(words, at + LIMB, p[1], r[1], q[1], s[1])
                    put4(words, at + 2 * LIMB, p[2], r[2], q[2], s[2])
            elif aligned:
                for c in range(0, 4, 2):
                    x, y = _eight16(raw, upper, first + 4 * c, n), _eight16(raw, lower, first + 4 * c, n2)
                    put4(words, piece_at(to, key, step, u, c), x[0], y[0], x[1], y[1])
                    put4(words, piece_at(to, key, step, u, c + 1), x[2], y[2], x[3], y[3])
            else:
                for c in range(4):
                    i = first + 4 * c
                    low, high = _pair16(raw, upper, i, n), _pair16(raw, upper, i + 2, n)
                    low2, high2 = _pair16(raw, lower, i, n2), _pair16(raw, lower, i + 2, n2)
                    put4(words, piece_at(to, key, step, u, c), low, low2, high, high2)
        return (ZERO, ZERO, ZERO, I32(0)), (ZERO, ZERO, ZERO, I32(0))

    return fill
