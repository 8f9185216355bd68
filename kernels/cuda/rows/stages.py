"""Row stages: norm, rope, Hadamard transform, rounding, storing, each on one row at a time, and chains of them.

A model applies several stages to a row one after the other, always in this order (to a query head: norm, rope; to a
cache row: norm, rope, rounding to E4M3 and binary16, storing in its ring buffer). One kernel has all stages, and an op
runs it with just its own, so a chain of several in one launch computes the same bits. A thread block processes one row,
which stays in its multiprocessor's L1 cache between stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..driver.grids import MOST_THREADS, threads_for
from ..driver.intrinsics import bits_to_float, float_bits, float_to_half, half_to_float, warp_sum
from ..driver.shim import cuda, f64, i32
from .maths import log2_64, sqrt32
from .rounding import (
    E2M1,
    E2M1_FLOOR,
    E2M1_MAX,
    E2M1_NORMAL,
    E2M1_STEP,
    E4M3,
    E4M3_FLOOR,
    E4M3_MAX,
    E4M3_NORMAL,
    E4M3_STEP,
    EXPONENT_MASK,
    F16,
    HADAMARD,
    MAGNITUDE_MASK,
    NORM,
    NOT_A_NUMBER,
    ROPE,
    nearest,
    power_of_two,
)

MOST, WARP = MOST_THREADS, 32
PEAKS = 1024
"""Maximum number of blocks with a scale of their own in a row that is rounded: at most 64 k channels of E4M3."""

F32 = np.float32
ONE, ZERO = np.float32(1), np.float32(0)
E2M1_BITS = 5
"""Logarithm of E2M1's block size, 32 values."""


@cuda.jit(device=True)
def block_sum(value, sums):
    """Return the sum of ``value`` over all threads of the block; ``sums`` is shared memory, one float64 per thread.

    Halves are added until one thread is left; the last warp does it with shuffles.
    """
    t = cuda.threadIdx.x
    sums[t] = value
    cuda.syncthreads()
    width = cuda.blockDim.x >> 1
    while width >= WARP:
        if t < width:
            sums[t] += sums[t + width]
        cuda.syncthreads()
        width >>= 1
    if t < WARP:
        total = warp_sum(sums[t])
        if t == 0:
            sums[0] = total
    cuda.syncthreads()
    total = sums[0]
    cuda.syncthreads()
    return total


@cuda.jit(device=True)
def round_blocks(src, out, base, n, peaks, bits, top, floor, normal, step):
    """Round values base .. base + n - 1 of src to a small float format and back, in blocks of 2^bits with their own
    power-of-two scale. A block with a NaN or an infinity becomes NaN throughout.

    peaks: shared memory, one int32 per block
    top, floor: greatest value of the format; least value that a block's largest magnitude counts as
    normal, step: as in ``rounding.nearest``
    """
    t, stride = cuda.threadIdx.x, cuda.blockDim.x
    for b in range(t, n >> bits, stride):
        peaks[b] = 0
    cuda.syncthreads()
    for i in range(t, n, stride):  # magnitudes order like their bit patterns
        cuda.atomic.max(peaks, i >> bits, float_bits(src[base + i]) & MAGNITUDE_MASK)
    cuda.syncthreads()
    for i in range(t, n, stride):
        peak = peaks[i >> bits]
        if peak >= EXPONENT_MASK:
            out[base + i] = NOT_A_NUMBER
        else:
            amax = bits_to_float(peak)
            amax = floor if amax < floor else amax
            exponent = int(F32(log2_64(F32(amax / top))))
            if F32(exponent) < F32(log2_64(F32(amax / top))):
                exponent += 1
            scale = power_of_two(exponent)
            out[base + i] = nearest(src[base + i], scale, top, normal, step)


class Stages(NamedTuple):
    """Which stages a chain has, and their numbers.

    n         values per row
    stages    sum of the numbers of the stages (``rounding``)
    weighted  whether norm multiplies by weights
    heads     rows per token, for rope
    eps       of norm
    half      number of pairs of channels that rope rotates
    gap       distance of the channels of a pair: 1 if they are adjacent, else ``half``
    sign      1, or -1 to rotate backwards
    channels  number of channels that are rounded to E4M3
    bits      logarithm of the size of E4M3's blocks
    factor    by which the Hadamard transform is scaled
    """

    n: int
    stages: int
    weighted: bool
    heads: int = 1
    eps: np.float32 = ZERO
    half: int = 0
    gap: int = 1
    sign: np.float32 = ONE
    channels: int = 0
    bits: int = 0
    factor: np.float32 = ONE


@cuda.jit(device=True)
def stages_of_row(x, out, weight, cos, sin, row, c, sums, peaks):
    """Apply all stages of ``c`` except storing to a row of x -> out; row r belongs to token r // heads."""
    base, token, n, stages, half = row * c.n, row // c.heads, c.n, c.stages, c.half
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    src = x
    if stages & NORM:
        total = 0.0
        for i in range(t, n, step):
            value = np.float64(src[base + i])
            total += value * value
        mean = F32(block_sum(total, sums) / n)
        rate = F32(ONE / sqrt32(F32(mean + c.eps)))
        for i in range(t, n, step):
            y = F32(src[base + i] * rate)
            if c.weighted:
                y = F32(y * weight[i])
            out[base + i] = y
        src = out
        cuda.syncthreads()
    if stages & ROPE:
        plain = n - 2 * half
        for i in range(t, plain, step):
            out[base + i] = src[base + i]
        for i in range(t, half, step):
            at = base + plain + (2 * i if c.gap == 1 else i)
            a, b = src[at], src[at + c.gap]
            cosine, sine = cos[token * half + i], F32(sin[token * half + i] * c.sign)
            out[at] = F32(a * cosine - b * sine)
            out[at + c.gap] = F32(a * sine + b * cosine)
        src = out
        cuda.syncthreads()
    if stages & HADAMARD:
        width = 1
        while width < n:
            for i in range(t, n >> 1, step):
                at = base + 2 * i - (i & (width - 1))
                a, b = src[at], src[at + width]
                y, z = F32(a + b), F32(a - b)
                if 2 * width == n:
                    y, z = F32(y * c.factor), F32(z * c.factor)
                out[at], out[at + width] = y, z
            src = out
            cuda.syncthreads()
            width *= 2
        if n == 1 and t == 0:
            out[base] = src[base]
        src = out
    if stages & E4M3:
        round_blocks(src, out, base, c.channels, peaks, c.bits, E4M3_MAX, E4M3_FLOOR, E4M3_NORMAL, E4M3_STEP)
        for i in range(c.channels + t, n, step):
            out[base + i] = src[base + i]
        src = out
        cuda.syncthreads()
    if stages & E2M1:
        round_blocks(src, out, base, n, peaks, E2M1_BITS, E2M1_MAX, E2M1_FLOOR, E2M1_NORMAL, E2M1_STEP)
        src = out
        cuda.syncthreads()
    if stages & F16:
        for i in range(t, n, step):
            out[base + i] = half_to_float(float_to_half(src[base + i]))
        cuda.syncthreads()


@cuda.jit
def chain_kernel(out, x, weight, cos, sin, c):
    """Run a chain of stages, on one row per thread block."""
    sums = cuda.shared.array(MOST, f64)
    peaks = cuda.shared.array(PEAKS, i32)
    stages_of_row(x, out, weight, cos, sin, cuda.blockIdx.x, c, sums, peaks)


def chain(stream, out, x, weight, cos, sin, rows, c):
    """Run a chain of stages on so many rows of x -> out; rope's angles are cos, sin (tokens, half)."""
    chain_kernel[rows, threads_for(c.n, MOST), stream](out, x, weight, cos, sin, c)


@cuda.jit
def chain_store_kernel(out, ring, x, weight, cos, sin, at, c, slots):
    """Run a chain of stages on one row per thread block, and store the result in its slot of the ring buffer."""
    sums = cuda.shared.array(MOST, f64)
    peaks = cuda.shared.array(PEAKS, i32)
    row = cuda.blockIdx.x
    stages_of_row(x, out, weight, cos, sin, row, c, sums, peaks)
    slot = (at[0] + row) % slots
    for i in range(cuda.threadIdx.x, c.n, cuda.blockDim.x):
        ring[slot * c.n + i] = out[row * c.n + i]


def chain_store(stream, out, ring, x, weight, cos, sin, at, rows, c, slots):
    """Run ``chain`` and store row r in row (at + r) % slots of the ring buffer; there may be at most ``slots`` rows."""
    chain_store_kernel[rows, threads_for(c.n, MOST), stream](out, ring, x, weight, cos, sin, at, c, slots)


@cuda.jit
def store_kernel(ring, x, at, tokens, n, slots):
    """Store one of the newest min(tokens, slots) rows per thread block."""
    token = cuda.blockIdx.x + max(tokens - slots, 0)
    slot = (at[0] + token) % slots
    for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        ring[slot * n + i] = x[token * n + i]


def store_rows(stream, ring, x, at, tokens, n, slots):
    """Store row i of x (tokens, n) in row (at + i) % slots of the ring buffer, for the newest ``slots`` rows; as
    float32 or binary16."""
    store_kernel[min(tokens, slots), threads_for(n, MOST), stream](ring, x, at, tokens, n, slots)
