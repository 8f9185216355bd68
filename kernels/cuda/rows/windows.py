"""Compression windows: position bias, gathering the rows of a window, and pooling them; and table look-ups."""

from __future__ import annotations

import numpy as np

from ..driver.grids import per_value
from ..driver.shim import cuda
from .maths import exp32

F32 = np.float32
LOWEST, ABSENT = F32(-np.inf), F32(-5e29)
"""ABSENT: score at or below which a row counts as absent; a channel in which all are absent becomes 0."""


@per_value()
def position_bias(out, gate, ape, at, size, ratio, width):
    """Add to each token's gate the bias of its position within a window: gate[i] + ape[(at + i) mod ratio], rows of
    ``width`` values."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        place = (at[0] + i // width) % ratio
        out[i] = gate[i] + ape[place * width + i % width]


@cuda.jit(device=True)
def candidate(ring, new, at, window, slot, channel, slots, tokens, ratio, width, overlap):
    """Return one channel of row ``slot`` of window ``window``.

    With overlap the first ``ratio`` rows are the first halves of the previous window's rows, the others the second
    halves of this window's rows. Positions past the last new row repeat it.
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


@per_value()
def windows(out, ring, new, at, size, slots, tokens, ratio, width, overlap):
    """Gather the rows of compression windows: ``ratio`` rows of ``width`` channels each, with overlap 2 ``ratio``."""
    depth = 2 * ratio if overlap else ratio
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = i // width
        out[i] = candidate(ring, new, at[0], row // depth, row % depth, i % width, slots, tokens, ratio, width, overlap)


@per_value(128)
def pool(out, kv, score, size, m, c):
    """Compute, per channel, the sum of the m values weighted by the softmax of their scores. A NaN score makes the
    result NaN."""
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


@per_value(128)
def take_rows(out, error, table, ids, size, width, rows, code):
    """Take rows ``ids`` of an integer table. An id out of range gives row 0 and sets ``error[0]`` to ``code``."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        row = ids[i // width]
        if row < 0 or row >= rows:
            error[0] = code
            row = 0
        out[i] = table[row * width + i % width]
