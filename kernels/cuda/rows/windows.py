"""Compression windows: position bias, candidates of a window, their pooling; and looking up rows of a table."""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for, threads_for
from ..driver.shim import cuda
from .maths import exp32

F32 = np.float32
LOWEST, ABSENT = F32(-np.inf), F32(-5e29)
"""ABSENT: a channel whose best score is not above this has no candidate and yields 0."""


@cuda.jit
def bias_kernel(out, gate, ape, at, size, ratio, width):
    """Thread: a value, and others a grid further."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        place = (at[0] + i // width) % ratio
        out[i] = gate[i] + ape[place * width + i % width]


def position_bias(stream, out, gate, ape, at, tokens, ratio, width):
    """gate[i] + ape[(at + i) mod ratio], (tokens, width)."""
    size = tokens * width
    threads = threads_for(size, 256, 1)
    bias_kernel[blocks_for(size, threads), threads, stream](out, gate, ape, at, size, ratio, width)


@cuda.jit(device=True)
def candidate(ring, new, at, window, slot, channel, slots, tokens, ratio, width, overlap):
    """Value of one channel of slot ``slot`` of window ``window``. With overlap the first ``ratio`` slots are the
    previous window's first halves, the rest this one's second halves. Beyond the new rows it is the last one."""
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
    """Thread: one value of the result, (windows, depth, width)."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = i // width
        out[i] = candidate(ring, new, at[0], row // depth, row % depth, i % width, slots, tokens, ratio, width, overlap)


def windows(stream, out, ring, new, at, count, slots, tokens, ratio, width, overlap):
    """Candidates of ``count`` windows; ``width`` channels each, and twice that many slots with overlap."""
    depth = 2 * ratio if overlap else ratio
    size = count * depth * width
    threads = threads_for(size, 256, 1)
    windows_kernel[blocks_for(size, threads), threads, stream](
        out, ring, new, at, size, slots, tokens, ratio, width, overlap, depth
    )


@cuda.jit
def pool_kernel(out, kv, score, size, m, c):
    """Thread: one channel of one window. A NaN among the scores is not passed over, so it ends in the weights."""
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
    """Per channel: softmax of the m scores, weighted sum of the m values; (n, c)."""
    threads = threads_for(n * c, 128, 1)
    pool_kernel[blocks_for(n * c, threads), threads, stream](out, kv, score, n * c, m, c)


@cuda.jit
def take_kernel(out, error, table, ids, size, width, rows, code):
    """Thread: a value, and others a grid further. A row that is not there gives row 0 and is told."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = ids[i // width]
        if row < 0 or row >= rows:
            error[0] = code
            row = 0
        out[i] = table[row * width + i % width]


def take_rows(stream, out, error, table, ids, count, width, rows, code):
    """Rows of an integer table."""
    size = count * width
    threads = threads_for(size, 128, 1)
    take_kernel[blocks_for(size, threads), threads, stream](out, error, table, ids, size, width, rows, code)
