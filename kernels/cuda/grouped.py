"""Grouped-query attention: heads in groups over keys and values of their own, split over the context.

What ``attending`` does for rows that are keys and values at once, for caches where they lie apart and have ``shared``
heads, each read by ``sharing`` heads of the query. A block has a token, a shared head, a group of the heads that read
it and a run of rows; ``attending.join_kernel`` brings the runs together, without sinks.
"""

from __future__ import annotations

import numpy as np

from .attending import (
    CHUNK,
    GROUP,
    LOWEST,
    PITCH,
    STAGED_HEADS,
    STAGED_ROWS,
    STAGED_SCORES,
    THREADS,
    TILE,
    add_scaled,
    join_kernel,
    runs_for,
)
from .launch import threads_for
from .maths import exp32
from .shim import cuda, f32, i32

__all__ = ["attend", "runs_for"]

F32 = np.float32


@cuda.jit
def attend_kernel(
    parts, tops, totals, error, q, keys, values, first_of, seen_of,
    shared, sharing, dim, groups, runs, ring, scale, code,
):  # fmt: skip
    """Sums of weighted values (tokens, runs, heads, dim), and the maximum and the sum of weights they stand for,
    (tokens, runs, heads)."""
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
    begin, seen = int(first_of[token]), int(seen_of[token])
    if begin < 0 or seen < 0 or seen > ring:
        if t == 0:
            error[0] = code
        seen = 0
    each = (seen + runs - 1) // runs
    each = (each + TILE - 1) // TILE * TILE
    at, end = run * each, min((run + 1) * each, seen)
    for h in range(t, GROUP, step):
        top[h], total[h] = LOWEST, F32(0)
    into = (token * runs + run) * heads + h0
    for i in range(t, here * dim, step):
        parts[into * dim + i] = F32(0)
    cuda.syncthreads()
    while at < end:
        live = min(TILE, end - at)
        for r in range(t, TILE, step):
            rows[r] = ((begin + at + min(r, live - 1)) % ring) * shared + head
        cuda.syncthreads()
        r0, k0 = t % (TILE // 2), t // (TILE // 2)
        r1, k1 = r0 + TILE // 2, k0 + GROUP // 2
        a00 = a01 = a10 = a11 = F32(0)
        for d0 in range(0, dim, CHUNK):
            for i in range(t, TILE * CHUNK, step):
                r, d = i // CHUNK, d0 + i % CHUNK
                left[r * PITCH + d - d0] = F32(keys[rows[r] * dim + d]) if d < dim else F32(0)
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
            for r in range(live):
                s = scores[h * TILE + r]
                best = s if s > best else best
            factor[h] = exp32(F32(top[h] - best))
            top[h] = best
        cuda.syncthreads()
        for i in range(t, GROUP * TILE, step):
            h, r = i // TILE, i % TILE
            scores[i] = exp32(F32(scores[i] - top[h])) if r < live else F32(0)
        cuda.syncthreads()
        for h in range(t, GROUP, step):
            weight = F32(0)
            for r in range(TILE):
                weight += scores[h * TILE + r]
            total[h] = F32(total[h] * factor[h]) + weight
        for c in range(t, dim, step):
            add_values(parts, values, rows, scores, factor, into, here, dim, c, live)
        cuda.syncthreads()
        at += TILE
    for h in range(t, here, step):
        tops[into + h], totals[into + h] = top[h], total[h]


@cuda.jit(device=True)
def add_values(parts, values, rows, scores, factor, into, here, dim, c, live):
    """One channel of 4 heads at a time: what is there times the factor, plus the weighted values of a tile."""
    for h in range(0, here, 4):
        o0 = o1 = o2 = o3 = F32(0)
        for r in range(live):
            x = F32(values[rows[r] * dim + c])
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


def attend(
    stream, out, parts, tops, totals, error, q, keys, values, first_of, seen_of, nothing,
    tokens, shared, sharing, dim, runs, ring, scale, code,
):  # fmt: skip
    """q (tokens, shared * sharing, dim) over the rows of two rings, with room for the parts of ``runs`` runs; what is
    read as ``nothing`` stands for the sinks."""
    groups = -(-sharing // GROUP)
    attend_kernel[tokens * shared * groups * runs, THREADS, stream](
        parts, tops, totals, error, q, keys, values, first_of, seen_of,
        shared, sharing, dim, groups, runs, ring, F32(scale), code,
    )  # fmt: skip
    heads = shared * sharing
    join_kernel[tokens * heads, threads_for(dim, 128, 4), stream](
        out, parts, tops, totals, nothing, False, heads, dim, runs
    )
