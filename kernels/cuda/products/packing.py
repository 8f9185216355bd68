"""Pack inputs for product kernels: int8 codes, four to a word, their scales, and the sums that minima are multiplied
by.

A warp takes 256 values of a row, a lane eight adjacent ones. Codes and scales are bit for bit those of the ops
``quantize_a8`` and ``quantize_q8k`` (model.md 10.2); products of float inputs with formats that have minima use sums of
16 inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..driver.grids import per_value
from ..driver.intrinsics import (
    bits_to_float,
    divide,
    float_bits,
    lane_value,
    read4,
    shuffle_xor,
    warp_max,
)
from ..driver.shim import cuda

F32, I32 = np.float32, np.int32
ZERO, ONE = F32(0), F32(1)
PEAK_A8, PEAK_Q8K = F32(127), F32(-127)
# Adding 1.5 * 2^23 leaves no fraction bits: the sum's low bits are the nearest integer, ties to even.
TO_INTEGER = F32(12582912)
EXPONENT, MAGNITUDE, BYTE = I32(0x7F800000), I32(0x7FFFFFFF), I32(255)
LOW, HIGH = F32(-128), F32(127)
NOT_A_NUMBER = F32(np.nan)
FAR = I32(1 << 20)
LANE_VALUES, WARP_VALUES = 8, 256
WARPS = 4


@cuda.jit(device=True)
def _code(x, inverse):
    """Return the nearest integer to x * inverse, between -128 and 127, in the low byte."""
    scaled = F32(x * inverse)
    scaled = HIGH if scaled > HIGH else (LOW if scaled < LOW else scaled)
    return I32(float_bits(F32(scaled + TO_INTEGER)) & BYTE)


@cuda.jit(device=True)
def _word(x, inverse):
    """Return the codes of four values, given as words."""
    a, b = _code(bits_to_float(x[0]), inverse), _code(bits_to_float(x[1]), inverse)
    c, d = _code(bits_to_float(x[2]), inverse), _code(bits_to_float(x[3]), inverse)
    return I32(a | (b << 8) | (c << 16) | (d << 24))


@cuda.jit(device=True)
def _larger(a, b):
    return a if a > b else b


@cuda.jit(device=True)
def _peak(x, y):
    """Return the largest magnitude of eight floats, given as words, as bits: as integers these are in the order of the
    magnitudes, with infinity above all numbers and NaN above infinity."""
    p = _larger(I32(x[0] & MAGNITUDE), I32(x[1] & MAGNITUDE))
    q = _larger(I32(x[2] & MAGNITUDE), I32(x[3] & MAGNITUDE))
    r = _larger(I32(y[0] & MAGNITUDE), I32(y[1] & MAGNITUDE))
    s = _larger(I32(y[2] & MAGNITUDE), I32(y[3] & MAGNITUDE))
    return _larger(_larger(p, q), _larger(r, s))


@cuda.jit(device=True)
def _byte_sum(word):
    """Sum the four signed bytes of a word."""
    return I32(
        (((word & 255) ^ 128) - 128)
        + ((((word >> 8) & 255) ^ 128) - 128)
        + ((((word >> 16) & 255) ^ 128) - 128)
        + ((((word >> 24) & 255) ^ 128) - 128)
    )


@cuda.jit(device=True)
def _first(x, y, peak):
    """Return the index of the first of eight values with magnitude ``peak``, FAR if none has it."""
    at = FAR
    at = I32(7) if y[3] & MAGNITUDE == peak else at
    at = I32(6) if y[2] & MAGNITUDE == peak else at
    at = I32(5) if y[1] & MAGNITUDE == peak else at
    at = I32(4) if y[0] & MAGNITUDE == peak else at
    at = I32(3) if x[3] & MAGNITUDE == peak else at
    at = I32(2) if x[2] & MAGNITUDE == peak else at
    at = I32(1) if x[1] & MAGNITUDE == peak else at
    at = I32(0) if x[0] & MAGNITUDE == peak else at
    return at


@cuda.jit
def _a8(codes, scales, x, n, count):
    """Quantize to A8, eight values per lane; four lanes share a block of 32."""
    number = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
    parts = (n + WARP_VALUES - 1) // WARP_VALUES
    row = divide(number, parts)
    column = (number - row * parts) * WARP_VALUES + LANE_VALUES * cuda.threadIdx.x
    inside = row < count and column < n
    at = row * n + column if inside else 0
    a, b = read4(x, at), read4(x, at + 4)
    peak = _peak(a, b)
    peak = _larger(peak, shuffle_xor(peak, 1))
    peak = _larger(peak, shuffle_xor(peak, 2))
    scale, inverse = F32(bits_to_float(peak) / PEAK_A8), ZERO
    good = float_bits(scale) < EXPONENT
    if good and scale > ZERO:
        inverse = F32(ONE / scale)
        inverse = inverse if float_bits(inverse) < EXPONENT else ZERO
    if inside:
        word = at >> 2
        codes[word] = _word(a, inverse) if good else I32(0)
        codes[word + 1] = _word(b, inverse) if good else I32(0)
        if at & 31 == 0:
            scales[at >> 5] = scale if good else NOT_A_NUMBER


@cuda.jit(device=True)
def _pick(x, y, i):
    """Return word i of eight."""
    p = x[1] if i & 1 else x[0]
    q = x[3] if i & 1 else x[2]
    r = y[1] if i & 1 else y[0]
    s = y[3] if i & 1 else y[2]
    p, r = q if i & 2 else p, s if i & 2 else r
    return r if i & 4 else p


@cuda.jit
def _q8k(codes, scales, sums, x, n, count):
    """Quantize to Q8_K, one block per warp, eight values per lane. Two lanes share a sum of 16 codes; two sums share a
    word."""
    lane = cuda.threadIdx.x
    number = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
    inside = number * WARP_VALUES < n * count
    at = number * WARP_VALUES + LANE_VALUES * lane if inside else 0
    a, b = read4(x, at), read4(x, at + 4)
    peak = warp_max(_peak(a, b))
    first = -warp_max(I32(-I32(LANE_VALUES * lane + _first(a, b, peak))))
    largest = bits_to_float(lane_value(_pick(a, b, first & 7), (first >> 3) & 31))
    good = peak < EXPONENT
    inverse = ZERO
    if good and peak > 0 and inside:
        inverse = F32(PEAK_Q8K / largest)
        inverse = inverse if float_bits(inverse) & MAGNITUDE < EXPONENT else ZERO
    low, high = _word(a, inverse) if good else I32(0), _word(b, inverse) if good else I32(0)
    total = I32(_byte_sum(low) + _byte_sum(high))
    total = I32(total + shuffle_xor(total, 1))
    other = shuffle_xor(total, 2)
    if inside:
        codes[at >> 2] = low
        codes[(at >> 2) + 1] = high
        if lane & 3 == 0:
            sums[at >> 5] = I32((total & 0xFFFF) | (other << 16))
        if lane == 0:
            scale = F32(ONE / inverse) if inverse != ZERO else ZERO
            scales[at >> 8] = scale if good else NOT_A_NUMBER


@per_value()
def pack_sums(sums, x, size):
    """Sum every 16 values of x -> sums (size,)."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        total = ZERO
        for k in range(4):
            a, b, c, d = read4(x, 16 * i + 4 * k)
            total += bits_to_float(a) + bits_to_float(b) + (bits_to_float(c) + bits_to_float(d))
        sums[i] = total


def _grid(count: int, n: int) -> int:
    return -(-(count * -(-n // WARP_VALUES)) // WARPS)


def pack_a8(stream: Any, codes: Any, scales: Any, x: Any, count: int, n: int) -> None:
    """Pack x (count, n) float32, n % 32 == 0, to codes (count, n / 4) int32 and scales (count, n / 32) float32."""
    _a8[_grid(count, n), (32, WARPS), stream](codes, scales, x, n, count)


def pack_q8k(stream: Any, codes: Any, scales: Any, sums: Any, x: Any, count: int, n: int) -> None:
    """Pack x (count, n) float32, n % 256 == 0, to codes (count, n / 4) int32, scales (count, n / 256) float32 and sums
    of 16 codes, (count, n / 32) int32, each two int16."""
    _q8k[_grid(count, n), (32, WARPS), stream](codes, scales, sums, x, n, count)
