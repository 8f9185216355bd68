"""Attention over cache rows on tensor cores: all query heads over the same rows, each both key and value (model.md 4),
or grouped-query attention (docs/explanation/dense.md).

A thread block processes a token, a cache head, GROUP of the query heads that read it, and a run of consecutive rows:
raw rows first, then compressed rows. It takes a tile of rows at a time, with an online softmax. Queries, rows and
weights are split into two binary16 with a power of two each (``halves``), whose products are exact: 16 heads are the
rows of ``mma``, cache rows its columns for the scores, channels its columns for the sums. Every sum of at most 32
products begins at zero on the tensor cores and is added in float32, because they truncate where a float32 addition
rounds.

If there are too few tokens to fill the GPU, the rows are split into several runs, whose results ``join_kernel``
combines; the attention sink is added there, to the denominator only. Row numbers out of range set ``error`` and are
never read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..driver.grids import threads_for
from ..driver.intrinsics import (
    divide,
    float_bits,
    matrices4,
    matrices4_turned,
    mma_f16,
    shuffle_xor,
    warp_max,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32, shared_limit
from .halves import MAGNITUDE, power_for, two_halves
from .maths import exp32

F32, I32, U64 = np.float32, np.int32, np.uint64
"""U64 is for indices known not to be negative; for other types Numba would test that."""
ZERO, ONE, NOT_A_NUMBER = F32(0), F32(1), F32(np.nan)
GROUP, WARPS = 16, 4
"""Query heads per thread block, which are the rows of ``mma``; and warps per thread block."""
LANES = 8
"""Threads that share a head in the softmax, so that all threads of a block serve GROUP heads."""
TILES = (32, 16)
"""Numbers of cache rows to take at a time: the first for which a thread block has enough shared memory is used."""
BATCH = 4
"""Rows that a warp reads before it splits the first of them."""
PAD = 4
"""Unused words after a row in shared memory, so that the pieces of eight rows are in different memory banks."""
LOWEST = F32(-1e30)
MOST_RUNS = 64
FILLED = 512
"""Thread blocks that keep a GPU busy: with fewer, rows are split into more runs."""


@cuda.jit(device=True)
def larger(a, b):
    return a if a > b else b


def padded_words(dim: int) -> int:
    """Return the words (two channels each) of a row in shared memory without PAD: as many for each lane of a warp."""
    return -(-dim // 64) * 32


def dynamic_bytes(dim: int, tile: int) -> int:
    """Return the bytes of dynamic shared memory that a thread block needs: for both binary16 of a tile's rows and of
    the queries."""
    return 4 * 2 * (tile + GROUP) * (padded_words(dim) + PAD)


def tile_rows(dim: int) -> int:
    """Return the number of rows that a tile can have on this device; raise ValueError if none of TILES fits."""
    for tile in TILES:
        if dynamic_bytes(dim, tile) + fixed_bytes(tile) <= shared_limit():
            return tile
    raise ValueError(f"attention with heads of {dim} channels needs more shared memory than this GPU gives a block")


def parts_of(tile: int) -> int:
    """Return how many warps share the channels of eight rows when scores are computed: there are more warps than groups
    of eight rows."""
    return WARPS * 8 // tile


def fixed_bytes(tile: int) -> int:
    """Return the bytes of static shared memory of a thread block. Every array of it is a multiple of 16 bytes, so that
    all, and the dynamic one after them, begin where ``matrices4`` can read, whatever their order."""
    return 4 * (3 * tile + 3 * GROUP + parts_of(tile) * GROUP * tile + 2 * GROUP * (tile // 2 + PAD))


@cache
def _split_rows(words: int) -> Callable[..., Any]:
    """Make the device function that splits BATCH rows, held in a warp's registers, into two binary16 each in shared
    memory."""
    each, pitch = words // 32, words + PAD

    @cuda.jit(device=True)
    def split(values, first, tile_words, store, at, down):
        """Write rows ``first`` .. of both limbs, ``tile_words`` words apart, from word ``at`` on; and their 2^-k."""
        lane = cuda.threadIdx.x
        for b in range(BATCH):
            peak = I32(0)
            for j in range(2 * each):
                peak = larger(I32(float_bits(values[b * 2 * each + j]) & MAGNITUDE), peak)
            up, inverse = power_for(warp_max(peak))
            to = at + (first + b) * pitch + lane
            for j in range(each):
                high, low = two_halves(
                    F32(values[(b * each + j) * 2] * up), F32(values[(b * each + j) * 2 + 1] * up)
                )  # fmt: skip
                store[U64(to + 32 * j)] = high
                store[U64(to + tile_words + 32 * j)] = low
            if lane == 0:
                down[U64(first + b)] = inverse

    return split


@cuda.jit(device=True)
def multiply(a_high, a_low, b, c):
    """Return c plus the product of a (16, 16) and b (16, 8), both split into high and low limbs, the smallest products
    first. ``b`` has both words of its high limb, then both of its low one. Products of two low limbs are below 2^-22 of
    the largest product, and are left out."""
    c = mma_f16(a_low[0], a_low[1], a_low[2], a_low[3], b[0], b[1], c[0], c[1], c[2], c[3])
    c = mma_f16(a_high[0], a_high[1], a_high[2], a_high[3], b[2], b[3], c[0], c[1], c[2], c[3])
    return mma_f16(a_high[0], a_high[1], a_high[2], a_high[3], b[0], b[1], c[0], c[1], c[2], c[3])


@cache
def kernel(words: int, whole: bool, tile: int, apart: bool) -> Any:
    """Make the kernel for heads of at most 2 ``words`` channels.

    whole: whether heads have exactly so many channels
    tile: rows at a time
    apart: whether values are other rows than keys
    """
    each, pitch, steps, eights = words // 32, words + PAD, words // 8, words // 16
    heads_at, tile_words, head_words = 2 * tile * pitch, tile * pitch, GROUP * pitch
    parts_k, rows_each = parts_of(tile), tile // LANES
    steps_each = steps // parts_k
    score_words = parts_k * GROUP * tile
    weight_pitch = tile // 2 + PAD
    weight_words = GROUP * weight_pitch
    both_weights = 2 * weight_words
    held, sums = BATCH * 2 * each, 4 * eights
    split = _split_rows(words)

    @cuda.jit(device=True)
    def read(values, at, x, base, dim):
        """Read the channels of a row that this lane holds."""
        channel = 2 * cuda.threadIdx.x
        start = base + channel
        for j in range(each):
            if whole:
                values[at + 2 * j] = F32(x[U64(start + 64 * j)])
                values[at + 2 * j + 1] = F32(x[U64(start + 64 * j + 1)])
            else:
                values[at + 2 * j] = F32(x[U64(start + 64 * j)]) if channel + 64 * j < dim else ZERO
                values[at + 2 * j + 1] = F32(x[U64(start + 64 * j + 1)]) if channel + 64 * j + 1 < dim else ZERO

    @cuda.jit(device=True)
    def fill(raw, comp, rows, store, down, dim):
        """Write both limbs of a tile's rows to shared memory."""
        values = cuda.local.array(held, f32)
        for round_ in range(tile // (WARPS * BATCH)):
            first = (round_ * WARPS + cuda.threadIdx.y) * BATCH
            for b in range(BATCH):
                number = rows[first + b]
                if number >= 0:
                    read(values, b * 2 * each, raw, number * dim, dim)
                elif number < -1:
                    read(values, b * 2 * each, comp, (-2 - number) * dim, dim)
                else:
                    for j in range(2 * each):
                        values[b * 2 * each + j] = ZERO
            split(values, first, tile_words, store, 0, down)

    @cuda.jit
    def attend_rows(
        parts, tops, totals, error, q, keys, values, first_of, count_of, comp, comp_count, selected,
        shared, sharing, dim, groups, runs, raw_rows, comp_rows, picks, picked, scale, code,
    ):  # fmt: skip
        """Attend in one block to a run of rows, for a token, one of ``shared`` cache heads, and a group of the
        ``sharing`` query heads that read it.

        Stores sums of weighted rows (tokens, runs, heads, dim), and their maximum score and sum of weights (tokens,
        runs, heads). Compressed rows are for rings of one head, whose keys are its values.
        """
        store = cuda.shared.array(0, i32)
        rows = cuda.shared.array(tile, i32)
        key_down = cuda.shared.array(tile, f32)
        value_down = cuda.shared.array(tile, f32)
        head_down = cuda.shared.array(GROUP, f32)
        factors = cuda.shared.array(GROUP, f32)
        part_down = cuda.shared.array(GROUP, f32)
        scores = cuda.shared.array(score_words, f32)
        weights = cuda.shared.array(both_weights, i32)
        lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
        t = I32(warp * 32 + lane)
        block = I32(cuda.blockIdx.x)
        rest = divide(block, runs)
        run, block = I32(block - rest * runs), rest
        rest = divide(block, groups)
        group, block = I32(block - rest * groups), rest
        token = divide(block, shared)
        head = I32(block - token * shared)
        heads = shared * sharing
        h0 = head * sharing + group * GROUP
        heads_here = min(GROUP, sharing - group * GROUP)
        begin, window = int(first_of[token]), int(count_of[token])
        compressed = picks if picked else int(comp_count[token])
        if begin < 0 or window < 0 or window > raw_rows or compressed < 0 or (not picked and compressed > comp_rows):
            if t == 0:
                error[0] = code
            window, compressed = 0, 0
        run_rows = divide(I32(window + compressed + runs - 1), runs)
        run_rows = divide(I32(run_rows + tile - 1), tile) * tile
        start, end = run * run_rows, min((run + 1) * run_rows, window + compressed)

        held_values = cuda.local.array(held, f32)
        first = warp * BATCH
        for b in range(BATCH):
            if first + b < heads_here:
                read(held_values, b * 2 * each, q, (token * heads + h0 + first + b) * dim, dim)
            else:
                for j in range(2 * each):
                    held_values[b * 2 * each + j] = ZERO
        split(held_values, first, head_words, store, heads_at, head_down)
        out = cuda.local.array(sums, f32)
        for i in range(sums):
            out[i] = ZERO
        # the softmax of head h is done by LANES threads, each with ``rows_each`` rows of a tile
        h, sub = t >> 3, t & 7
        top, total = LOWEST, ZERO
        # places of this lane in the 8 x 8 matrices that a warp loads: as rows (a), as columns (b), and turned (v)
        r, c = lane >> 2, lane & 3
        matrix, line = lane >> 3, lane & 7
        a_at = (8 * (matrix & 1) + line) * pitch + 4 * (matrix >> 1)
        p_at = (8 * (matrix & 1) + line) * weight_pitch + 4 * (matrix >> 1)
        part = divide(8 * warp, tile)
        eight = warp - part * (tile // 8)
        b_at = (matrix >> 1) * tile_words + (8 * eight + line) * pitch + 4 * (matrix & 1)
        v_at = (matrix >> 1) * tile_words + (8 * (matrix & 1) + line) * pitch + 4 * eights * warp
        at = start
        while at < end:
            if t < tile:
                position, number = at + t, -1
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
                rows[t] = number
            cuda.syncthreads()
            fill(keys, comp, rows, store, key_down, dim)
            cuda.syncthreads()
            s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
            for pair in range(steps_each // 2):
                d = (ZERO, ZERO, ZERO, ZERO)
                for half in range(2):
                    word = 8 * (part * steps_each + 2 * pair + half)
                    high = matrices4(store, heads_at + a_at + word)
                    low = matrices4(store, heads_at + head_words + a_at + word)
                    d = multiply(high, low, matrices4(store, b_at + word), d)
                s0, s1, s2, s3 = s0 + d[0], s1 + d[1], s2 + d[2], s3 + d[3]
            to = (part * GROUP + r) * tile + 8 * eight + 2 * c
            scores[to], scores[to + 1] = s0, s1
            scores[to + 8 * tile], scores[to + 8 * tile + 1] = s2, s3
            cuda.syncthreads()
            if apart:
                fill(values, comp, rows, store, value_down, dim)
                cuda.syncthreads()
            # a score for each of this thread's rows, then its weight
            mine = cuda.local.array(rows_each, f32)
            new_top = top
            for i in range(rows_each):
                place = sub * rows_each + i
                s = scores[h * tile + place]
                if parts_k == 2:
                    s += scores[(GROUP + h) * tile + place]
                s = F32(F32(s * head_down[h]) * key_down[place]) * scale
                mine[i] = s
                if rows[place] != -1:
                    new_top = s if s > new_top else new_top
            new_top = larger(new_top, shuffle_xor(new_top, 4))
            new_top = larger(new_top, shuffle_xor(new_top, 2))
            new_top = larger(new_top, shuffle_xor(new_top, 1))
            factor = exp32(F32(top - new_top))
            top = new_top
            weight, peak = ZERO, I32(0)
            for i in range(rows_each):
                place = sub * rows_each + i
                p = exp32(F32(mine[i] - top)) if rows[place] != -1 else ZERO
                weight += p
                p = F32(p * (value_down[place] if apart else key_down[place]))
                mine[i] = p
                peak = larger(I32(float_bits(p) & MAGNITUDE), peak)
            weight += shuffle_xor(weight, 4)
            weight += shuffle_xor(weight, 2)
            weight += shuffle_xor(weight, 1)
            total = F32(total * factor) + weight
            peak = larger(peak, shuffle_xor(peak, 4))
            peak = larger(peak, shuffle_xor(peak, 2))
            peak = larger(peak, shuffle_xor(peak, 1))
            up, inverse = power_for(peak)
            for i in range(rows_each // 2):
                high_word, low_word = two_halves(F32(mine[2 * i] * up), F32(mine[2 * i + 1] * up))
                to = h * weight_pitch + sub * (rows_each // 2) + i
                weights[to] = high_word
                weights[weight_words + to] = low_word
            if sub == 0:
                factors[h] = factor
                part_down[h] = inverse
            cuda.syncthreads()
            f0, f1 = factors[r], factors[r + 8]
            g0, g1 = part_down[r], part_down[r + 8]
            for n in range(eights):
                d = (ZERO, ZERO, ZERO, ZERO)
                for step in range(tile // 16):
                    high = matrices4(weights, p_at + 8 * step)
                    low = matrices4(weights, weight_words + p_at + 8 * step)
                    d = multiply(high, low, matrices4_turned(store, v_at + 16 * step * pitch + 4 * n), d)
                out[4 * n] = F32(out[4 * n] * f0) + F32(d[0] * g0)
                out[4 * n + 1] = F32(out[4 * n + 1] * f0) + F32(d[1] * g0)
                out[4 * n + 2] = F32(out[4 * n + 2] * f1) + F32(d[2] * g1)
                out[4 * n + 3] = F32(out[4 * n + 3] * f1) + F32(d[3] * g1)
            at += tile
        into = (token * runs + run) * heads + h0
        channel = 8 * eights * warp + 2 * c
        put = (into + r) * dim + channel
        for n in range(eights):
            for k in range(4):
                row_in, on = r + 4 * (k & 2) < heads_here, 8 * n + (k & 1)
                if row_in and (whole or channel + on < dim):
                    parts[U64(put + 4 * (k & 2) * dim + on)] = out[4 * n + k]
        if sub == 0 and h < heads_here:
            tops[into + h], totals[into + h] = top, total

    return attend_rows


@cuda.jit
def join_kernel(out, parts, tops, totals, sinks, sunk, heads, dim, runs):
    """Combine the results of all runs for a token and a head, in one thread block; ``sunk``: whether there are
    sinks."""
    shares = cuda.shared.array(MOST_RUNS, f32)
    sums = cuda.shared.array(MOST_RUNS, f32)
    token = divide(I32(cuda.blockIdx.x), heads)
    h = I32(cuda.blockIdx.x - token * heads)
    first, t, step = token * runs * heads + h, cuda.threadIdx.x, cuda.blockDim.x
    for run in range(t, runs, step):
        shares[run] = tops[first + run * heads]
    cuda.syncthreads()
    sink, top = LOWEST, LOWEST
    if sunk:
        sink = sinks[h]
        top = sink if not sink <= top else top  # a NaN sink makes the result NaN
    for run in range(runs):
        value = shares[U64(run)]
        top = value if value > top else top
    cuda.syncthreads()
    for run in range(t, runs, step):
        share = exp32(F32(shares[run] - top))
        shares[run] = share
        sums[run] = F32(totals[first + run * heads] * share)
    cuda.syncthreads()
    total = exp32(F32(sink - top)) if sunk else F32(0)
    for run in range(runs):
        total += sums[U64(run)]
    for c in range(t, dim, step):
        value, at = F32(0), first * dim + c
        for run in range(runs):
            value += F32(parts[U64(at)] * shares[U64(run)])
            at += heads * dim
        out[(token * heads + h) * dim + c] = F32(value / total)


def runs_for(tokens: int, shared: int, sharing: int, rows: int, tile: int) -> int:
    """Return the number of runs to split each token's rows into, of which there are at most ``rows``.

    shared: cache heads
    sharing: query heads that read each cache head
    tile: rows that are processed at a time
    """
    blocks = tokens * shared * -(-sharing // GROUP)
    return max(1, min(MOST_RUNS, -(-rows // tile), -(-FILLED // blocks)))


def attend(
    stream, out, parts, tops, totals, error, q, keys, values, first_of, count_of, comp, comp_count, selected, sinks,
    tokens, shared, sharing, dim, runs, raw_rows, comp_rows, picks, picked, apart, sunk, scale, code,
):  # fmt: skip
    """Attend with q (tokens, shared * sharing, dim) to rows of two ring buffers (unless ``apart``, of one) and to
    compressed rows -> out, of the shape of q.

    parts, tops, totals: scratch memory for the results of ``runs`` runs
    shared, sharing: number of cache heads, and of query heads that read each
    raw_rows, comp_rows, picks: rows of a ring buffer, compressed rows, selected rows per token
    picked: whether only selected compressed rows are read
    sunk: whether there are sinks
    code: failure code for a row number out of range
    """
    groups, heads = -(-sharing // GROUP), shared * sharing
    args = (
        parts, tops, totals, error, q, keys, values, first_of, count_of, comp, comp_count, selected,
        shared, sharing, dim, groups, runs, raw_rows, comp_rows, picks, picked, F32(scale), code,
    )  # fmt: skip
    tile, words = tile_rows(dim), padded_words(dim)
    compiled, dynamic = kernel(words, dim == 2 * words, tile, apart), dynamic_bytes(dim, tile)
    allow_shared(compiled, dynamic, args, fixed_bytes(tile))
    compiled[tokens * shared * groups * runs, (32, WARPS), stream, dynamic](*args)
    join_kernel[tokens * heads, threads_for(dim, 512, 1), stream](
        out, parts, tops, totals, sinks, sunk, heads, dim, runs
    )
