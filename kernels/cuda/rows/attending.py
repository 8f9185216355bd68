"""Attention over cached rows, split over the context: all heads over the same rows, which are keys and values
(model.md 4), or groups of heads over keys and values of their own (docs/explanation/dense.md).

A block works on a token, a cache head, a group of the query heads that read it, and a run of rows: window rows first,
then compressed rows. It takes TILE rows at a time with an online softmax: scores are a small matrix product staged in
shared memory, then each row adds to every channel. When few tokens must fill the GPU, the rows are cut into several
runs that ``join`` combines; the attention sink enters there, into the denominator only. Row numbers out of range set
``error`` and are never read.
"""

from __future__ import annotations

import numpy as np

from ..driver.grids import threads_for
from ..driver.shim import cuda, f32, i32
from .maths import exp32

F32 = np.float32
GROUP, TILE = 8, 64
"""Heads and rows of a block at a time. A thread has the scores of 2 x 2 of them."""
THREADS = GROUP * TILE // 4
CHUNK = 32
PITCH = CHUNK + 1
STAGED_ROWS, STAGED_HEADS, STAGED_SCORES = TILE * PITCH, GROUP * PITCH, GROUP * TILE
"""Sizes of shared arrays: names, because compiled kernels take no products there."""
LOWEST = F32(-1e30)
MOST_RUNS = 64
FILLED = 512
"""Blocks that keep a GPU busy: with fewer, rows are cut into more runs."""


@cuda.jit(device=True)
def row_value(raw, comp, number, dim, channel):
    """A channel of a window row (numbers from 0 on) or of compressed row -2 - number; -1 is no row."""
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
    """Block: a token, one of ``shared`` heads of the rings, a group of the ``sharing`` heads of the query that read it,
    a run of rows. Sums of weighted rows (tokens, runs, heads, dim), and the maximum and the sum of weights they stand
    for, (tokens, runs, heads). Compressed rows are for rings of one head, whose keys are its values."""
    rows = cuda.shared.array(TILE, i32)
    left = cuda.shared.array(STAGED_ROWS, f32)
    right = cuda.shared.array(STAGED_HEADS, f32)
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
    here = min(GROUP, sharing - group * GROUP)
    begin, window = int(first_of[token]), int(count_of[token])
    others = picks if picked else int(comp_count[token])
    if begin < 0 or window < 0 or window > raw_rows or others < 0 or (not picked and others > comp_rows):
        if t == 0:
            error[0] = code
        window, others = 0, 0
    each = (window + others + runs - 1) // runs
    each = (each + TILE - 1) // TILE * TILE
    start, end = run * each, min((run + 1) * each, window + others)
    for h in range(t, GROUP, step):
        top[h], total[h] = LOWEST, F32(0)
    into = (token * runs + run) * heads + h0
    for i in range(t, here * dim, step):
        parts[into * dim + i] = F32(0)
    cuda.syncthreads()
    at = start
    while at < end:
        for r in range(t, TILE, step):
            seen, number = at + r, -1
            if seen < end:
                if seen < window:
                    number = (begin + seen) % raw_rows * shared + head
                elif picked:
                    pick = selected[token * picks + seen - window]
                    if pick >= comp_rows:
                        error[0] = code
                    elif pick >= 0:
                        number = -2 - pick
                else:
                    number = -2 - (seen - window)
            rows[r] = number
        cuda.syncthreads()
        r0, k0 = t % (TILE // 2), t // (TILE // 2)
        r1, k1 = r0 + TILE // 2, k0 + GROUP // 2
        a00 = a01 = a10 = a11 = F32(0)
        for d0 in range(0, dim, CHUNK):
            for i in range(t, TILE * CHUNK, step):
                r, d = i // CHUNK, d0 + i % CHUNK
                left[r * PITCH + d - d0] = row_value(keys, comp, rows[r], dim, d) if d < dim else F32(0)
            for i in range(t, GROUP * CHUNK, step):
                h, d = i // CHUNK, d0 + i % CHUNK
                inside = d < dim and h < here
                right[h * PITCH + d - d0] = q[(token * heads + h0 + h) * dim + d] if inside else F32(0)
            cuda.syncthreads()
            b00 = b01 = b10 = b11 = F32(0)
            for d in range(CHUNK):
                x0, x1 = left[r0 * PITCH + d], left[r1 * PITCH + d]
                y0, y1 = right[k0 * PITCH + d], right[k1 * PITCH + d]
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
            best = top[h]
            for r in range(TILE):
                if rows[r] != -1:
                    s = scores[h * TILE + r]
                    best = s if s > best else best
            factor[h] = exp32(F32(top[h] - best))
            top[h] = best
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
            add_rows(parts, values, comp, rows, scores, factor, into, here, dim, c, live)
        cuda.syncthreads()
        at += TILE
    for h in range(t, here, step):
        tops[into + h], totals[into + h] = top[h], total[h]


@cuda.jit(device=True)
def add_rows(parts, values, comp, rows, scores, factor, into, here, dim, c, live):
    """One channel of 4 heads at a time: what is there times the factor, plus the weighted rows of a tile."""
    for h in range(0, here, 4):
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
        if h + 1 < here:
            add_scaled(parts, (into + h + 1) * dim + c, factor[h + 1], o1)
        if h + 2 < here:
            add_scaled(parts, (into + h + 2) * dim + c, factor[h + 2], o2)
        if h + 3 < here:
            add_scaled(parts, (into + h + 3) * dim + c, factor[h + 3], o3)


@cuda.jit(device=True)
def add_scaled(parts, at, factor, value):
    """parts[at] = parts[at] factor + value, the product rounded first."""
    parts[at] = F32(parts[at] * factor) + value


@cuda.jit
def join_kernel(out, parts, tops, totals, sinks, sunk, heads, dim, runs):
    """Block: a token and a head. Without ``sunk`` there are no sinks."""
    token, h = cuda.blockIdx.x // heads, cuda.blockIdx.x % heads
    sink, top = LOWEST, LOWEST
    if sunk:
        sink = sinks[h]
        top = sink if not sink <= top else top  # a sink that is not a number is one's end, too
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
    """Runs that the rows of a token, at most ``rows``, are cut into, where each of ``shared`` heads of the cache is
    read by ``sharing`` of the query."""
    blocks = tokens * shared * -(-sharing // GROUP)
    return max(1, min(MOST_RUNS, -(-rows // TILE), -(-FILLED // blocks)))


def attention(
    stream, out, parts, tops, totals, error, q, raw, first_of, count_of, comp, comp_count, selected, sinks,
    tokens, heads, dim, runs, raw_rows, comp_rows, picks, picked, scale, code,
):  # fmt: skip
    """q (tokens, heads, dim) over rows of a ring and compressed ones, with room for the parts of ``runs`` runs."""
    groups = -(-heads // GROUP)
    attention_kernel[tokens * groups * runs, THREADS, stream](
        parts, tops, totals, error, q, raw, raw, first_of, count_of, comp, comp_count, selected,
        1, heads, dim, groups, runs, raw_rows, comp_rows, picks, picked, F32(scale), code,
    )  # fmt: skip
    join_kernel[tokens * heads, threads_for(dim, 128, 4), stream](
        out, parts, tops, totals, sinks, True, heads, dim, runs
    )


def attend(
    stream, out, parts, tops, totals, error, q, keys, values, first_of, seen_of, nothing, none,
    tokens, shared, sharing, dim, runs, ring, scale, code,
):  # fmt: skip
    """q (tokens, shared * sharing, dim) over the rows of two rings, with room for the parts of ``runs`` runs. What is
    read as ``nothing`` and ``none`` stands for sinks and compressed rows, and for the choice of these: no rows are
    picked."""
    groups = -(-sharing // GROUP)
    attention_kernel[tokens * shared * groups * runs, THREADS, stream](
        parts, tops, totals, error, q, keys, values, first_of, seen_of, nothing, none, none,
        shared, sharing, dim, groups, runs, ring, 0, 0, True, F32(scale), code,
    )  # fmt: skip
    heads = shared * sharing
    join_kernel[tokens * heads, threads_for(dim, 128, 4), stream](
        out, parts, tops, totals, nothing, False, heads, dim, runs
    )
