"""Compression windows: position bias, candidates of a window, their pooling; and table look-ups."""

from __future__ import annotations

import numpy as np

from ..driver.grids import MOST_THREADS, blocks_for, per_value, threads_for
from ..driver.shim import cuda
from .maths import exp32

F32 = np.float32
LOWEST, ABSENT = F32(-np.inf), F32(-5e29)
"""ABSENT: a channel whose best score is not above this has no candidate and yields 0."""


@cuda.jit
def bias_kernel(out, gate, ape, at, size, ratio, width):
    """Add the bias in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        place = (at[0] + i // width) % ratio
        out[i] = gate[i] + ape[place * width + i % width]


def position_bias(stream, out, gate, ape, at, tokens, ratio, width):
    """Compute gate[i] + ape[(at + i) mod ratio], (tokens, width)."""
    size = tokens * width
    threads = threads_for(size, 256, 1)
    bias_kernel[blocks_for(size, threads), threads, stream](out, gate, ape, at, size, ratio, width)


@cuda.jit
def store_both_kernel(ring, ring2, x, x2, ape, at, tokens, n, slots, ratio):
    """Store one of the newest min(tokens, slots) rows of both per block."""
    token = cuda.blockIdx.x + max(tokens - slots, 0)
    slot = (at[0] + token) % slots
    place = (at[0] + token) % max(ratio, 1)
    for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        ring[slot * n + i] = x[token * n + i]
        value = x2[token * n + i]
        ring2[slot * n + i] = value + ape[place * n + i] if ratio > 0 else value


def store_both(stream, ring, ring2, x, x2, ape, at, tokens, n, slots, ratio):
    """Run ``stages.store_rows`` of x and of x2 (tokens, n), or, if ``ratio`` is not 0, of ``position_bias`` of x2
    (``folding``)."""
    store_both_kernel[min(tokens, slots), threads_for(n, MOST_THREADS), stream](
        ring, ring2, x, x2, ape, at, tokens, n, slots, ratio
    )


@cuda.jit(device=True)
def candidate(ring, new, at, window, slot, channel, slots, tokens, ratio, width, overlap):
    """Return one channel of slot ``slot`` of window ``window``.

    With overlap the first ``ratio`` slots are the previous window's first halves, the rest this one's second halves.
    Positions past the last new row repeat it.
    """
    position = (at // ratio + window) * ratio + slot
    column, columns = channel, width
    if overlap:
        columns = 2 * width
        position -= ratio
        if slot >= ratio:
            column += width
    if position >= at:
        return new[min(position - at, tokens - 1) * columns + column]
    return ring[(position + slots) % slots * columns + column]


@cuda.jit
def windows_kernel(out, ring, new, at, size, slots, tokens, ratio, width, overlap, depth):
    """Gather one value of the result, (windows, depth, width), per thread."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = i // width
        out[i] = candidate(ring, new, at[0], row // depth, row % depth, i % width, slots, tokens, ratio, width, overlap)


def windows(stream, out, ring, new, at, count, slots, tokens, ratio, width, overlap):
    """Gather the candidates of ``count`` windows: ``ratio`` slots of ``width`` channels each, 2 ``ratio`` with
    overlap."""
    depth = 2 * ratio if overlap else ratio
    size = count * depth * width
    threads = threads_for(size, 256, 1)
    windows_kernel[blocks_for(size, threads), threads, stream](
        out, ring, new, at, size, slots, tokens, ratio, width, overlap, depth
    )


@cuda.jit
def pool_kernel(out, kv, score, size, m, c):
    """Pool one channel of one window per thread. A NaN score makes the weights NaN."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        base = i // c * m * c + i % c
        top = LOWEST
        for j in range(m):
            value = score[base + j * c]
            top = top if value <= top else value
        total, mean = F32(0), F32(0)
        for j in range(m):
            weight = F32(0) if top <= ABSENT else exp32(F32(score[base + j * c] - top))
            total += weight
            mean += F32(weight * kv[base + j * c])
        out[i] = F32(mean / total) if total != 0 else F32(0)


def pool(stream, out, kv, score, n, m, c):
    """Compute per channel the softmax of the m scores and the weighted sum of the m values, (n, c)."""
    threads = threads_for(n * c, 128, 1)
    pool_kernel[blocks_for(n * c, threads), threads, stream](out, kv, score, n * c, m, c)


@cuda.jit(device=True)
def placed(ring, new, slot, fresh, slots, tokens, columns, column):
    """Return one channel of a candidate: of new row ``fresh``, or, if that is negative, of ring row ``slot``, which may
    count on past the end of the ring."""
    if fresh >= 0:
        return new[min(fresh, tokens - 1) * columns + column]
    return ring[(slot - slots if slot >= slots else slot) * columns + column]


@cuda.jit
def pool_windows_kernel(out, ring, ring2, new, new2, at, size, slots, tokens, ratio, width, overlap, depth):
    """Pool one channel of one window per thread, as ``pool_kernel`` does, from where ``windows_kernel`` would gather
    it: slots of a window follow each other in the ring, so that the first one's place is enough."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        window, channel = i // width, i % width
        columns = 2 * width if overlap else width
        first = (at[0] // ratio + window) * ratio - (ratio if overlap else 0)
        begin, fresh = (first + slots) % slots, at[0] - first  # the slot from which on rows are new
        top = LOWEST
        for j in range(depth):
            column = channel + (width if overlap and j >= ratio else 0)
            value = placed(ring2, new2, begin + j, j - fresh, slots, tokens, columns, column)
            top = top if value <= top else value
        total, mean = F32(0), F32(0)
        for j in range(depth):
            column = channel + (width if overlap and j >= ratio else 0)
            value = placed(ring2, new2, begin + j, j - fresh, slots, tokens, columns, column)
            weight = F32(0) if top <= ABSENT else exp32(F32(value - top))
            total += weight
            mean += F32(weight * placed(ring, new, begin + j, j - fresh, slots, tokens, columns, column))
        out[i] = F32(mean / total) if total != 0 else F32(0)


def pool_windows(stream, out, ring, ring2, new, new2, at, count, slots, tokens, ratio, width, overlap):
    """Run ``windows`` of two rings and ``pool`` of both (``folding``)."""
    depth = 2 * ratio if overlap else ratio
    size = count * width
    threads = threads_for(size, 128, 1)
    pool_windows_kernel[blocks_for(size, threads), threads, stream](
        out, ring, ring2, new, new2, at, size, slots, tokens, ratio, width, overlap, depth
    )


@per_value(128)
def take_rows(out, error, table, ids, size, width, rows, code):
    """Take rows of an integer table. An id out of range yields row 0 and sets ``error``."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = ids[i // width]
        if row < 0 or row >= rows:
            error[0] = code
            row = 0
        out[i] = table[row * width + i % width]
