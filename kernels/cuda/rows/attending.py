"""Attention over cached rows, split over the context: all heads over the same rows as keys and values (model.md 4), or
grouped queries (docs/explanation/dense.md).

A block processes a token, a cache head, a group of the query heads that read it, and a run of rows: window rows first,
then compressed rows. It takes TILE rows at a time with an online softmax: scores are a small matrix product staged in
shared memory, then each row is added to every channel. When few tokens must fill the GPU, the rows are split into
several runs that ``join_kernel`` combines; the attention sink enters there, into the denominator only. Row numbers out
of range set ``error`` and are never read.
"""

from __future__ import annotations

import numpy as np

from ..driver.grids import threads_for
from ..driver.shim import cuda, f32, i32
from .maths import exp32

F32 = np.float32
GROUP, TILE = 8, 64
"""Heads and rows of a block at a time. A thread computes the scores of 2 x 2 of them."""
THREADS = GROUP * TILE // 4
CHUNK = 32
PITCH = CHUNK + 1
STAGED_ROWS, STAGED_HEADS, STAGED_SCORES = TILE * PITCH, GROUP * PITCH, GROUP * TILE
"""Sizes of shared arrays, as names because compiled kernels accept no products there."""
LOWEST = F32(-1e30)
MOST_RUNS = 64
FILLED = 512
"""Blocks that keep a GPU busy: with fewer, rows are split into more runs."""


@cuda.jit(device=True)
def row_value(raw, comp, number, dim, channel):
    """Return a channel of a window row (numbers from 0 on) or of compressed row -2 - number; 0 for -1, no row."""
    if number >= 0:
        return F32(raw[number * dim + channel])
    if number < -1:
        return F32(comp[(-2 - number) * dim + channel])
    return F32(0)


@cuda.jit
def attention_kernel(
    parts, tops, totals, error, q, keys, values, first_of, count_of, comp, comp_count, selected,
    shared, sharing, dim, groups, runs, raw_rows, comp_rows, picks, picked, scale, code,
):  # fmt: skip
    """Attend in one block to a run of rows, for a token, one of ``shared`` cache heads, and a group of the ``sharing``
    query heads that read it.

    Stores sums of weighted rows (tokens, runs, heads, dim), and their maximum score and sum of weights (tokens, runs,
    heads). Compressed rows are for rings of one head, whose keys are its values.
    """
    rows = cuda.shared.array(TILE, i32)
    row_tile = cuda.shared.array(STAGED_ROWS, f32)
    query_tile = cuda.shared.array(STAGED_HEADS, f32)
    scores = cuda.shared.array(STAGED_SCORES, f32)
    top = cuda.shared.array(GROUP, f32)
    total = cuda.shared.array(GROUP, f32)
    factor = cuda.shared.array(GROUP, f32)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    run, rest = cuda.blockIdx.x % runs, cuda.blockIdx.x // runs
    group, rest = rest % groups, rest // groups
    head, token = rest % shared, rest // shared
    heads = shared * sharing
    h0 = head * sharing + group * GROUP
    heads_here = min(GROUP, sharing - group * GROUP)
    begin, window = int(first_of[token]), int(count_of[token])
    compressed = picks if picked else int(comp_count[token])
    if begin < 0 or window < 0 or window > raw_rows or compressed < 0 or (not picked and compressed > comp_rows):
        if t == 0:
            error[0] = code
        window, compressed = 0, 0
    run_rows = (window + compressed + runs - 1) // runs
    run_rows = (run_rows + TILE - 1) // TILE * TILE
    start, end = run * run_rows, min((run + 1) * run_rows, window + compressed)
    for h in range(t, GROUP, step):
        top[h], total[h] = LOWEST, F32(0)
    into = (token * runs + run) * heads + h0
    for i in range(t, heads_here * dim, step):
        parts[into * dim + i] = F32(0)
    cuda.syncthreads()
    at = start
    while at < end:
        for r in range(t, TILE, step):
            position, number = at + r, -1
            if position < end:
                if position < window:
                    number = (begin + position) % raw_rows * shared + head
                elif picked:
                    pick = selected[token * picks + position - window]
                    if pick >= comp_rows:
                        error[0] = code
                    elif pick >= 0:
                        number = -2 - pick
                else:
                    number = -2 - (position - window)
            rows[r] = number
        cuda.syncthreads()
        r0, k0 = t % (TILE // 2), t // (TILE // 2)
        r1, k1 = r0 + TILE // 2, k0 + GROUP // 2
        a00 = a01 = a10 = a11 = F32(0)
        for d0 in range(0, dim, CHUNK):
            for i in range(t, TILE * CHUNK, step):
                r, d = i // CHUNK, d0 + i % CHUNK
                row_tile[r * PITCH + d - d0] = row_value(keys, comp, rows[r], dim, d) if d < dim else F32(0)
            for i in range(t, GROUP * CHUNK, step):
                h, d = i // CHUNK, d0 + i % CHUNK
                inside = d < dim and h < heads_here
                query_tile[h * PITCH + d - d0] = q[(token * heads + h0 + h) * dim + d] if inside else F32(0)
            cuda.syncthreads()
            b00 = b01 = b10 = b11 = F32(0)
            for d in range(CHUNK):
                x0, x1 = row_tile[r0 * PITCH + d], row_tile[r1 * PITCH + d]
                y0, y1 = query_tile[k0 * PITCH + d], query_tile[k1 * PITCH + d]
                b00 += x0 * y0
                b01 += x0 * y1
                b10 += x1 * y0
                b11 += x1 * y1
            a00 += b00
            a01 += b01
            a10 += b10
            a11 += b11
            cuda.syncthreads()
        scores[k0 * TILE + r0] = a00 * scale
        scores[k1 * TILE + r0] = a01 * scale
        scores[k0 * TILE + r1] = a10 * scale
        scores[k1 * TILE + r1] = a11 * scale
        cuda.syncthreads()
        for h in range(t, GROUP, step):
            new_top = top[h]
            for r in range(TILE):
                if rows[r] != -1:
                    s = scores[h * TILE + r]
                    new_top = s if s > new_top else new_top
            factor[h] = exp32(F32(top[h] - new_top))
            top[h] = new_top
        cuda.syncthreads()
        for i in range(t, GROUP * TILE, step):
            h, r = i // TILE, i % TILE
            scores[i] = exp32(F32(scores[i] - top[h])) if rows[r] != -1 else F32(0)
        cuda.syncthreads()
        for h in range(t, GROUP, step):
            weight = F32(0)
            for r in range(TILE):
                weight += scores[h * TILE + r]
            total[h] = F32(total[h] * factor[h]) + weight
        live = min(TILE, end - at)
        for c in range(t, dim, step):
            add_rows(parts, values, comp, rows, scores, factor, into, heads_here, dim, c, live)
        cuda.syncthreads()
        at += TILE
    for h in range(t, heads_here, step):
        tops[into + h], totals[into + h] = top[h], total[h]


@cuda.jit(device=True)
def add_rows(parts, values, comp, rows, scores, factor, into, heads_here, dim, c, live):
    """Rescale one channel of the sums by the factor and add the weighted rows of a tile, 4 heads at a time."""
    for h in range(0, heads_here, 4):
        o0 = o1 = o2 = o3 = F32(0)
        for r in range(live):
            number = rows[r]
            if number != -1:
                x = row_value(values, comp, number, dim, c)
                o0 += scores[h * TILE + r] * x
                o1 += scores[(h + 1) * TILE + r] * x
                o2 += scores[(h + 2) * TILE + r] * x
                o3 += scores[(h + 3) * TILE + r] * x
        add_scaled(parts, (into + h) * dim + c, factor[h], o0)
        if h + 1 < heads_here:
            add_scaled(parts, (into + h + 1) * dim + c, factor[h + 1], o1)
        if h + 2 < heads_here:
            add_scaled(parts, (into + h + 2) * dim + c, factor[h + 2], o2)
        if h + 3 < heads_here:
            add_scaled(parts, (into + h + 3) * dim + c, factor[h + 3], o3)


@cuda.jit(device=True)
def add_scaled(parts, at, factor, value):
    """Compute parts[at] = parts[at] factor + value, the product rounded first."""
    parts[at] = F32(parts[at] * factor) + value


@cuda.jit
def join_kernel(out, parts, tops, totals, sinks, sunk, heads, dim, runs):
    """Combine the runs of a token and a head in one block. Without ``sunk`` there are no sinks."""
    token, h = cuda.blockIdx.x // heads, cuda.blockIdx.x % heads
    sink, top = LOWEST, LOWEST
    if sunk:
        sink = sinks[h]
        top = sink if not sink <= top else top  # a NaN sink makes the result NaN
    for run in range(runs):
        value = tops[(token * runs + run) * heads + h]
        top = value if value > top else top
    total = exp32(F32(sink - top)) if sunk else F32(0)
    for run in range(runs):
        at = (token * runs + run) * heads + h
        total += F32(totals[at] * exp32(F32(tops[at] - top)))
    for c in range(cuda.threadIdx.x, dim, cuda.blockDim.x):
        value = F32(0)
        for run in range(runs):
            at = (token * runs + run) * heads + h
            value += F32(parts[at * dim + c] * exp32(F32(tops[at] - top)))
        out[(token * heads + h) * dim + c] = F32(value / total)


def runs_for(tokens: int, shared: int, sharing: int, rows: int) -> int:
    """Return the number of runs to split a token's rows into, at most ``rows``, where ``sharing`` query heads read each
    of ``shared`` cache heads."""
    blocks = tokens * shared * -(-sharing // GROUP)
    return max(1, min(MOST_RUNS, -(-rows // TILE), -(-FILLED // blocks)))


def attention(
    stream, out, parts, tops, totals, error, q, raw, first_of, count_of, comp, comp_count, selected, sinks,
    tokens, heads, dim, runs, raw_rows, comp_rows, picks, picked, scale, code,
):  # fmt: skip
    """Attend q (tokens, heads, dim) to rows of a ring and compressed ones, with scratch for the parts of ``runs``
    runs."""
    groups = -(-heads // GROUP)
    attention_kernel[tokens * groups * runs, THREADS, stream](
        parts, tops, totals, error, q, raw, raw, first_of, count_of, comp, comp_count, selected,
        1, heads, dim, groups, runs, raw_rows, comp_rows, picks, picked, F32(scale), code,
    )  # fmt: skip
    join_kernel[tokens * heads, threads_for(dim, 128, 4), stream](
        out, parts, tops, totals, sinks, True, heads, dim, runs
    )


def attend(
    stream, out, parts, tops, totals, error, q, keys, values, first_of, count_of, no_floats, no_ints,
    tokens, shared, sharing, dim, runs, ring, scale, code,
):  # fmt: skip
    """Attend q (tokens, shared * sharing, dim) to the rows of two rings, with scratch for the parts of ``runs`` runs.
    ``no_floats`` and ``no_ints`` stand for the sinks, compressed rows and selection that are not used."""
    groups = -(-sharing // GROUP)
    attention_kernel[tokens * shared * groups * runs, THREADS, stream](
        parts, tops, totals, error, q, keys, values, first_of, count_of, no_floats, no_ints, no_ints,
        shared, sharing, dim, groups, runs, ring, 0, 0, True, F32(scale), code,
    )  # fmt: skip
    heads = shared * sharing
    join_kernel[tokens * heads, threads_for(dim, 128, 4), stream](
        out, parts, tops, totals, no_floats, False, heads, dim, runs
    )
