"""GEMM of many float32 input vectors with F16 matrices on tensor cores (``matmat_float`` has all other formats).

Weights are copied to shared memory as they are, inputs as two limbs of binary16 (``rows.halves``) in the order of their
columns, STAGES steps ahead, and ``ldmatrix`` brings both to the tensor cores. Blocks are small, because these matrices
have few rows: ROWS rows with TILE inputs, a warp 32 rows with 16 inputs. Every sum of 32 products begins at zero, least
limbs first, and is added in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.matrix import Matrix
from ..driver.intrinsics import (
    copy16,
    copy_commit,
    copy_wait1,
    matrices4,
    mma_f16,
    put4,
    read4,
    warp_max,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32
from ..rows.halves import power_for
from .mixing import limbs_of, peak_of

F32, I32, I64, U64 = np.float32, np.int32, np.int64, np.uint64
ZERO = F32(0)
ROWS, TILE, STEP, STAGES = 64, 64, 64, 3
WARPS = 8
THREADS = 32 * WARPS
PITCH = STEP // 2 + 4
"""Words from a row of a step to the next: eight rows' pieces lie in different banks."""
INPUTS_AT = ROWS * PITCH
LIMB = TILE * PITCH
STAGE = INPUTS_AT + 2 * LIMB
DYNAMIC_BYTES = 4 * STAGES * STAGE
PART = 16
"""Accumulators per lane: two times 16 rows with two times 8 inputs."""


def fits(w: Matrix, groups: int) -> bool:
    """Whether there is such a kernel for a matrix."""
    return w.fmt == "F16" and groups == 1 and w.cols % STEP == 0


@cuda.jit
def split(limbs, downs, x, n):
    """Split one vector per block into limbs (vectors, 2, n / 2 words), and store what scales its products back."""
    peaks = cuda.shared.array(WARPS, i32)
    t = I32(cuda.threadIdx.y * 32 + cuda.threadIdx.x)
    vector = I32(cuda.blockIdx.x)
    start = I64(vector) * n
    peak, i = I32(0), I32(8 * t)
    while i < n:
        peak = max(peak, peak_of(read4(x, start + i), read4(x, start + i + 4)))
        i += I32(8 * THREADS)
    peak = warp_max(peak)
    if cuda.threadIdx.x == 0:
        peaks[cuda.threadIdx.y] = peak
    cuda.syncthreads()
    for k in range(WARPS):
        peak = max(peak, peaks[U64(k)])
    up, down = power_for(peak)
    if t == 0:
        downs[vector] = down
    i = I32(8 * t)
    while i < n:
        a, b, c, d, _ = limbs_of(read4(x, start + i), up)
        e, f, g, h, _ = limbs_of(read4(x, start + i + 4), up)
        put4(limbs, start + (i >> 1), a, b, e, f)
        put4(limbs, start + (n >> 1) + (i >> 1), c, d, g, h)
        i += I32(8 * THREADS)


@cuda.jit(device=True)
def fetch(words, at, raw, limbs, upper, lower, vector, later, half, column):
    """Begin to copy this thread's pieces of a step to word ``at``: from byte ``upper`` and ``lower`` of weights on, and
    from word ``vector`` and ``later`` of the first limb of inputs, ``half`` words before the second."""
    copy16(words, at, raw, upper + 2 * column)
    copy16(words, at + 32 * PITCH, raw, lower + 2 * column)
    column >>= 1
    copy16(words, at + INPUTS_AT, limbs, vector + column)
    copy16(words, at + INPUTS_AT + 32 * PITCH, limbs, later + column)
    copy16(words, at + INPUTS_AT + LIMB, limbs, vector + half + column)
    copy16(words, at + INPUTS_AT + LIMB + 32 * PITCH, limbs, later + half + column)


@cuda.jit
def multiply(raw, limbs, downs, out, rows, n, tokens):
    """Multiply ROWS rows with TILE inputs per block -> out (tokens, rows)."""
    words = cuda.shared.array(0, i32)
    lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
    t = I32(warp * 32 + lane)
    first_row, first = I32(cuda.blockIdx.x * ROWS), I32(cuda.blockIdx.y * TILE)
    r, c = lane >> 2, lane & 3
    matrix, line = lane >> 3, lane & 7
    upper, token = 32 * (warp & 1), 16 * (warp >> 1)
    a_at = (upper + 8 * (matrix & 1) + line) * PITCH + 4 * (matrix >> 1)
    b_at = INPUTS_AT + (token + line) * PITCH + 4 * matrix
    parts = cuda.local.array(PART, f32)
    for i in range(PART):
        parts[i] = ZERO
    # a thread copies the same piece of two rows of weights, and of two inputs, of which the last ones may repeat
    row, piece = t >> 3, t & 7
    from_row = 2 * (I64(min(I32(first_row + row), I32(rows - 1))) * n + 8 * piece)
    from_row2 = 2 * (I64(min(I32(first_row + row + 32), I32(rows - 1))) * n + 8 * piece)
    from_input = I64(min(I32(first + row), I32(tokens - 1))) * n + 4 * piece
    from_input2 = I64(min(I32(first + row + 32), I32(tokens - 1))) * n + 4 * piece
    half, to = n >> 1, I32(row * PITCH + 4 * piece)
    for stage in range(STAGES - 1):
        if stage * STEP < n:
            fetch(
                words, to + stage * STAGE, raw, limbs, from_row, from_row2, from_input, from_input2, half, stage * STEP
            )  # fmt: skip
        copy_commit()
    column, at, ahead = I32(0), I32(0), I32((STAGES - 1) * STAGE)
    while column < n:
        copy_wait1()
        cuda.syncthreads()
        later = I32(column + (STAGES - 1) * STEP)
        if later < n:
            fetch(words, to + ahead, raw, limbs, from_row, from_row2, from_input, from_input2, half, later)
        copy_commit()
        for unit in range(STEP // 32):
            w0, w1 = matrices4(words, at + a_at + 16 * unit), matrices4(words, at + a_at + 16 * unit + 8)
            v0 = matrices4(words, at + a_at + 16 * PITCH + 16 * unit)
            v1 = matrices4(words, at + a_at + 16 * PITCH + 16 * unit + 8)
            for k in range(2):
                high = matrices4(words, at + b_at + 8 * k * PITCH + 16 * unit)
                low = matrices4(words, at + b_at + LIMB + 8 * k * PITCH + 16 * unit)
                p = mma_f16(w0[0], w0[1], w0[2], w0[3], low[0], low[1], ZERO, ZERO, ZERO, ZERO)
                q = mma_f16(v0[0], v0[1], v0[2], v0[3], low[0], low[1], ZERO, ZERO, ZERO, ZERO)
                p = mma_f16(w1[0], w1[1], w1[2], w1[3], low[2], low[3], p[0], p[1], p[2], p[3])
                q = mma_f16(v1[0], v1[1], v1[2], v1[3], low[2], low[3], q[0], q[1], q[2], q[3])
                p = mma_f16(w0[0], w0[1], w0[2], w0[3], high[0], high[1], p[0], p[1], p[2], p[3])
                q = mma_f16(v0[0], v0[1], v0[2], v0[3], high[0], high[1], q[0], q[1], q[2], q[3])
                p = mma_f16(w1[0], w1[1], w1[2], w1[3], high[2], high[3], p[0], p[1], p[2], p[3])
                q = mma_f16(v1[0], v1[1], v1[2], v1[3], high[2], high[3], q[0], q[1], q[2], q[3])
                for i in range(4):
                    parts[8 * k + i] += p[i]
                    parts[8 * k + 4 + i] += q[i]
        column += I32(STEP)
        at = I32(at + STAGE) if at < (STAGES - 1) * STAGE else I32(0)
        ahead = I32(ahead + STAGE) if ahead < (STAGES - 1) * STAGE else I32(0)
    for k in range(2):
        for h in range(2):
            vector = I32(first + token + 8 * k + 2 * c + h)
            if vector < tokens:
                down = downs[U64(vector)]
                for i in range(4):
                    row = I32(first_row + upper + 8 * i + r)
                    if row < rows:
                        out[U64(I64(vector) * rows + row)] = F32(parts[8 * k + 2 * i + h] * down)


def in_order(stream: Any, out: Any, x: Any, w: Matrix, tokens: int, *, scratch: Any) -> None:
    """Multiply x (tokens, n) with a matrix -> out (tokens, rows)."""
    n = w.cols
    limbs, downs = scratch((tokens * n,), np.int32), scratch((tokens,), np.float32)
    split[tokens, (32, WARPS), stream](limbs, downs, x, n)
    args = w.data, limbs, downs, out, w.rows, n, tokens
    allow_shared(multiply, DYNAMIC_BYTES, args)
    multiply[(-(-w.rows // ROWS), -(-tokens // TILE)), (32, WARPS), stream, DYNAMIC_BYTES](*args)
