"""Products with weights that are not quantized (F16, BF16, F32), and the mixing logits of hyper-connections.

Inputs and sums are float32. Several warps may share a row, so that matrices of few rows keep the memory busy, too; a
lane has four 16-byte loads in flight. Rows that do not start at multiples of 16 bytes are read value by value.
``ds4ref.kernels.ops`` says what each product computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...formats.matrix import Matrix
from ..driver.intrinsics import (
    bits_to_float,
    divide,
    element,
    half_to_float,
    read4,
    remainder,
    shift_left,
    shift_right,
    stream4,
    warp_sum,
)
from ..driver.shim import cuda, f32, f64, multiprocessors
from ..rows.maths import sqrt32
from .operands import Routing, Weights, matrices_of

F32, F64, I32 = np.float32, np.float64, np.int32
ZERO, ONE, NOTHING = F32(0), F32(1), F64(0)
UPPER = I32(-0x10000)
WARPS = 8
MIX_WARPS = 16
BUSY_WARPS = 16
"""Warps per multiprocessor that should have work; with fewer, several warps share a row."""

VALUE_BYTES = {"F16": 2, "BF16": 2, "F32": 4}


@cuda.jit(device=True)
def _dot8(w, x, at, total, bf16):
    """Return total + eight 16-bit weights in four words times x[at..]."""
    a, b = read4(x, at), read4(x, at + 4)
    if bf16:
        total += bits_to_float(shift_left(w[0], 16)) * bits_to_float(a[0])
        total += bits_to_float(w[0] & UPPER) * bits_to_float(a[1])
        total += bits_to_float(shift_left(w[1], 16)) * bits_to_float(a[2])
        total += bits_to_float(w[1] & UPPER) * bits_to_float(a[3])
        total += bits_to_float(shift_left(w[2], 16)) * bits_to_float(b[0])
        total += bits_to_float(w[2] & UPPER) * bits_to_float(b[1])
        total += bits_to_float(shift_left(w[3], 16)) * bits_to_float(b[2])
        total += bits_to_float(w[3] & UPPER) * bits_to_float(b[3])
    else:
        total += half_to_float(w[0]) * bits_to_float(a[0])
        total += half_to_float(shift_right(w[0], 16)) * bits_to_float(a[1])
        total += half_to_float(w[1]) * bits_to_float(a[2])
        total += half_to_float(shift_right(w[1], 16)) * bits_to_float(a[3])
        total += half_to_float(w[2]) * bits_to_float(b[0])
        total += half_to_float(shift_right(w[2], 16)) * bits_to_float(b[1])
        total += half_to_float(w[3]) * bits_to_float(b[2])
        total += half_to_float(shift_right(w[3], 16)) * bits_to_float(b[3])
    return total


@cuda.jit(device=True)
def _dot4(w, x, at, total):
    """Return total + four float32 weights times x[at..]."""
    a = read4(x, at)
    total += bits_to_float(w[0]) * bits_to_float(a[0])
    total += bits_to_float(w[1]) * bits_to_float(a[1])
    total += bits_to_float(w[2]) * bits_to_float(a[2])
    total += bits_to_float(w[3]) * bits_to_float(a[3])
    return total


@cache
def _reader(fmt: str) -> tuple[Any, Any]:
    """Make two device functions for a format: one for the dot product of 16 bytes of weights, one that reads a single
    weight."""
    bf16, wide = fmt == "BF16", fmt == "F32"

    @cuda.jit(device=True)
    def dot(w, x, at, total):
        if wide:
            return _dot4(w, x, at, total)
        return _dot8(w, x, at, total, bf16)

    @cuda.jit(device=True)
    def one(raw, at):
        low = I32(raw[at]) | I32(raw[at + 1]) << 8
        if wide:
            return bits_to_float(low | I32(raw[at + 2]) << 16 | shift_left(I32(raw[at + 3]), 24))
        if bf16:
            return bits_to_float(shift_left(low, 16))
        return half_to_float(low)

    return dot, one


@cache
def _rows(fmt: str, aligned: bool) -> Any:
    """Make the kernel for a format, in which ``2^split_bits`` warps of a block share a row.

    It avoids divisions where it can: one costs a lane as much time as several weights.
    """
    dot, one = _reader(fmt)
    size = VALUE_BYTES[fmt]
    step = 16 // size

    @cuda.jit
    def multiply(matrices, routing, x, pairs, split_bits):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        parts = cuda.shared.array(WARPS, f32)
        split = I32(1 << split_bits)
        number = I32(cuda.blockIdx.x * (WARPS >> split_bits) + (warp >> split_bits))
        n = matrices.n
        part = I32(warp & (split - 1))
        total = ZERO
        height, source, second = I32(matrices.rows), matrices.raw, number >= pairs * matrices.rows
        if second:
            number = I32(number - pairs * matrices.rows)
            height, source = I32(matrices.rows2), matrices.raw2
        pair, row = I32(0), number
        if number >= pairs * height:
            pair = I32(pairs)  # no work for this warp
        elif pairs > 1:
            pair = divide(number, height)
            row = I32(number - pair * height)
        if pair < pairs:
            for slot in range(routing.slots):
                matrix_id, vector = I32(0), I32(pair * routing.slots + slot)
                if routing.groups > 1:
                    matrix_id = remainder(pair, routing.groups)
                if routing.experts > 0:
                    matrix_id = I32(element(routing.ids, vector))
                    if matrix_id < 0 or matrix_id >= routing.experts:
                        routing.error[0] = I32(routing.failure)
                        matrix_id = I32(0)
                start = (np.int64(matrix_id) * height + row) * (n * size)
                if routing.share > 1:
                    vector = divide(vector, routing.share)
                vector = I32(vector * n)
                if aligned:
                    span = 32 * step
                    end = n // step * step
                    i = part * span + lane * step
                    while i + 3 * split * span < end:
                        w0 = stream4(source, start + i * size)
                        w1 = stream4(source, start + (i + split * span) * size)
                        w2 = stream4(source, start + (i + 2 * split * span) * size)
                        w3 = stream4(source, start + (i + 3 * split * span) * size)
                        total = dot(w0, x, vector + i, total)
                        total = dot(w1, x, vector + i + split * span, total)
                        total = dot(w2, x, vector + i + 2 * split * span, total)
                        total = dot(w3, x, vector + i + 3 * split * span, total)
                        i += 4 * split * span
                    while i < end:
                        total = dot(stream4(source, start + i * size), x, vector + i, total)
                        i += split * span
                else:
                    i = part * 32 + lane
                    while i < n:
                        total += one(source, start + i * size) * x[vector + i]
                        i += split * 32
        total = warp_sum(total)
        if lane == 0:
            parts[warp] = total
        cuda.syncthreads()
        if lane == 0 and part == 0 and pair < pairs:
            for k in range(1, split):
                total += parts[warp + k]
            if second:
                matrices.out2[pair * height + row] = total
            else:
                matrices.out[pair * height + row] = total

    return multiply


def warps_a_row(rows: int, pairs: int) -> int:
    """Return the logarithm to base 2 of the number of warps that share a row, which determines the order of its sum."""
    bits = 0
    while 1 << bits < WARPS and rows * pairs << bits < BUSY_WARPS * multiprocessors():
        bits += 1
    return bits


def rows(stream: Any, weights: Sequence[Weights], x: Any, fmt: str, routing: Routing, n: int, pairs: int) -> None:
    """Multiply ``pairs`` inputs by one or two matrices, for which ``warps_a_row`` must be the same."""
    split_bits = warps_a_row(weights[0].rows, pairs)
    size = n * VALUE_BYTES[fmt]
    grid = -(-(sum(w.rows for w in weights) * pairs) // (WARPS >> split_bits))
    args = matrices_of(weights, size, n), routing, x, pairs, split_bits
    _rows(fmt, size % 16 == 0 and n % 4 == 0)[grid, (32, WARPS), stream](*args)


@cache
def _mix(fmt: str, aligned: bool) -> Any:
    """Make the kernel for one row of ``fn`` and one token per block; the block reads all of the token's streams, so it
    can compute their norm."""
    dot, one = _reader(fmt)
    size = VALUE_BYTES[fmt]
    step = 16 // size

    @cuda.jit
    def mix(out, x, raw, rows, n, eps):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        dots = cuda.shared.array(MIX_WARPS, f32)
        squares = cuda.shared.array(MIX_WARPS, f64)
        token, row = cuda.blockIdx.y, cuda.blockIdx.x
        vector = token * n
        start = row * (n * size)
        total, square = ZERO, NOTHING
        if aligned:
            for i in range((warp * 32 + lane) * step, n, MIX_WARPS * 32 * step):
                total = dot(stream4(raw, start + i * size), x, vector + i, total)
                for k in range(0, step, 4):
                    a, b, c, d = read4(x, vector + i + k)
                    p, q, r, s = bits_to_float(a), bits_to_float(b), bits_to_float(c), bits_to_float(d)
                    square += F64(p) * F64(p) + F64(q) * F64(q) + (F64(r) * F64(r) + F64(s) * F64(s))
        else:
            for i in range(warp * 32 + lane, n, MIX_WARPS * 32):
                value = x[vector + i]
                total += one(raw, start + i * size) * value
                square += F64(value) * F64(value)
        total, square = warp_sum(total), warp_sum(square)
        if lane == 0:
            dots[warp] = total
            squares[warp] = square
        cuda.syncthreads()
        if warp == 0 and lane == 0:
            for k in range(1, MIX_WARPS):
                total += dots[k]
                square += squares[k]
            mean = F32(square / n)
            out[token * rows + row] = total * F32(ONE / sqrt32(F32(mean + eps)))

    return mix


def hc_mix(stream: Any, out: Any, x: Any, fn: Matrix, tokens: int, eps: float) -> None:
    """Divide x (tokens, n) by its root mean square and multiply with fn -> out (tokens, rows)."""
    if fn.fmt not in VALUE_BYTES:
        raise ValueError(f"no kernel mixes streams with {fn.fmt} weights: F16, BF16 or F32")
    n = fn.cols
    aligned = n * VALUE_BYTES[fn.fmt] % 16 == 0 and n % 4 == 0
    _mix(fn.fmt, aligned)[(fn.rows, tokens), (32, MIX_WARPS), stream](out, x, fn.data, fn.rows, n, F32(eps))
