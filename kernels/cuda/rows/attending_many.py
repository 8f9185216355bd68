"""Attention of many tokens over rows of one cache head that are binary16 numbers (``attending`` says what is computed).

A block processes a token and HEADS of its heads, whose channels stay in registers for all rows: a warp keeps SLICE
channels of 16 heads for the scores, and sums the same channels of rows for the same heads. Rows are copied as they are,
TILE at a time, while those before are multiplied; a row of binary16 is one limb, so that a product takes two ``mma``
where ``attending`` takes three. Scores are partial sums of the warps, added in float32 like every sum of 32 products.

Rings hold float32: theirs is a copy (``halving``). Where that lost something blocks do nothing, and those of
``attending`` do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.intrinsics import (
    bits_to_float,
    copy16,
    copy_commit,
    copy_wait0,
    divide,
    float_bits,
    matrices4,
    matrices4_turned,
    mma_f16,
    remainder,
    shuffle_xor,
    warp_max,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32, shared_limit
from .attending import LOWEST, PAD, larger
from .halves import MAGNITUDE, power_for, two_halves
from .maths import exp32

F32, I32, U64 = np.float32, np.int32, np.uint64
ZERO, MINUS = F32(0), F32(-np.inf)
HEADS, TILE = 32, 32
"""Heads of a block, and cached rows at a time."""
FLAGS = 2 * TILE
REGISTERS = 128
"""Of a thread, so that a multiprocessor has room for the 16 warps of a block."""
SLICE = 64
"""Channels of a warp's scores: two sums of 32 products."""
DIMS = (64, 128, 256, 512)
"""Channels of heads for which there is a kernel: powers of two, a thread each."""
FEWEST = 64
"""Tokens from which on there are blocks enough for a GPU without cutting rows into runs."""
UP, DOWN = F32(2.0**14), F32(2.0**-14)
"""What brings weights, at most 1, to the top of binary16, and back."""
SCORE_PITCH = TILE + 8
"""Floats from a head's partial scores to the next one's: half a warp's pairs lie in different banks."""
WEIGHT_PITCH = TILE // 2 + PAD


def words_of(dim: int) -> tuple[int, int, int]:
    """Words of shared memory: of a tile, of all partial scores, of one limb of the weights."""
    return TILE * (dim // 2 + PAD), dim // SLICE * HEADS * SCORE_PITCH, HEADS * WEIGHT_PITCH


def dynamic_bytes(dim: int) -> int:
    """Return the dynamic shared memory of a block: two tiles, scores, both limbs of weights."""
    tile, scores, weights = words_of(dim)
    return 4 * (2 * tile + scores + 2 * weights)


FIXED_BYTES = 4 * (2 * HEADS + FLAGS)


def fits(tokens: int, dim: int) -> bool:
    """Whether this module attends for so many tokens with heads of ``dim`` channels on this device."""
    return tokens >= FEWEST and dim in DIMS and dynamic_bytes(dim) + FIXED_BYTES <= shared_limit()


@cache
def kernel(dim: int) -> Any:
    """Make the kernel for heads of ``dim`` channels."""
    warps, pitch, row_pieces = dim // 32, dim // 2 + PAD, dim // 8
    slices, sharing = dim // SLICE, warps
    tile_words, score_words, weight_words = words_of(dim)
    scores_at, weights_at = 2 * tile_words, 2 * tile_words + score_words
    rows_each, heads_each = TILE // sharing, HEADS // warps
    query_words, sums, each = 4 * 2 * SLICE // 16, 32, dim // 32
    rows_pitch = HEADS * SCORE_PITCH

    @cuda.jit(device=True)
    def number_of(position, end, window, begin, raw_rows, comp_rows, picked, selected, pick_at, error, code):
        """Return the row at a position: its place in the ring, -2 - its number if it is compressed, -1 for none."""
        if position >= end:
            return I32(-1)
        if position < window:
            return I32(remainder(I32(begin + position), raw_rows))
        if not picked:
            return I32(-2 - (position - window))
        pick = I32(selected[U64(pick_at + position - window)])
        if pick >= comp_rows:
            error[0] = code
            return I32(-1)
        return I32(-2 - pick) if pick >= 0 else I32(-1)

    @cuda.jit(max_registers=REGISTERS)
    def attend_rows(
        out, error, lossy, q, halves, first_of, count_of, comp, comp_count, selected, sinks,
        heads, groups, raw_rows, comp_rows, picks, picked, scale, code,
    ):  # fmt: skip
        """Attend for one token and a group of heads: out (tokens, heads, dim)."""
        store = cuda.shared.array(0, i32)
        head_down = cuda.shared.array(HEADS, f32)
        factors = cuda.shared.array(HEADS, f32)
        numbers = cuda.shared.array(FLAGS, i32)
        if lossy[0] != 0:
            return
        lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
        t = I32(warp * 32 + lane)
        token = divide(I32(cuda.blockIdx.x), groups)
        h0 = I32((I32(cuda.blockIdx.x) - token * groups) * HEADS)
        begin, window = I32(first_of[token]), I32(count_of[token])
        compressed = I32(picks) if picked else I32(comp_count[token])
        if begin < 0 or window < 0 or window > raw_rows or compressed < 0 or (not picked and compressed > comp_rows):
            if t == 0:
                error[0] = code
            window, compressed = I32(0), I32(0)
        end = I32(window + compressed)
        pick_at = I32(token * picks)

        if t < FLAGS:
            numbers[U64(t)] = number_of(
                t, end, window, begin, raw_rows, comp_rows, picked, selected, pick_at, error, code
            )  # fmt: skip
        # queries: both limbs of a head in the two tiles' memory, then into registers
        values = cuda.local.array(each, f32)
        for k in range(heads_each):
            head = I32(warp * heads_each + k)
            start = (token * heads + h0 + head) * dim + 2 * lane
            peak = I32(0)
            for j in range(each // 2):
                if h0 + head < heads:
                    values[2 * j], values[2 * j + 1] = q[U64(start + 64 * j)], q[U64(start + 64 * j + 1)]
                else:
                    values[2 * j], values[2 * j + 1] = ZERO, ZERO
                peak = larger(I32(float_bits(values[2 * j]) & MAGNITUDE), peak)
                peak = larger(I32(float_bits(values[2 * j + 1]) & MAGNITUDE), peak)
            up, inverse = power_for(warp_max(peak))
            for j in range(each // 2):
                high, low = two_halves(F32(values[2 * j] * up), F32(values[2 * j + 1] * up))
                store[U64(head * pitch + lane + 32 * j)] = high
                store[U64(tile_words + head * pitch + lane + 32 * j)] = low
            if lane == 0:
                head_down[U64(head)] = F32(inverse * scale)
        cuda.syncthreads()
        # places of this lane in the 8 x 8 matrices that a warp loads: as rows (a), as columns (b), and turned (v)
        r, c = lane >> 2, lane & 3
        matrix, line = lane >> 3, lane & 7
        half, part = warp & 1, warp >> 1
        a_row, a_word = 8 * (matrix & 1) + line, 4 * (matrix >> 1)
        queries = cuda.local.array(query_words, i32)
        for step in range(SLICE // 16):
            at = (16 * half + a_row) * pitch + a_word + part * (SLICE // 2) + 8 * step
            w0, w1, w2, w3 = matrices4(store, at)
            queries[8 * step], queries[8 * step + 1], queries[8 * step + 2], queries[8 * step + 3] = w0, w1, w2, w3
            w0, w1, w2, w3 = matrices4(store, tile_words + at)
            queries[8 * step + 4], queries[8 * step + 5], queries[8 * step + 6], queries[8 * step + 7] = w0, w1, w2, w3
        cuda.syncthreads()
        p_at = weights_at + (16 * half + a_row) * WEIGHT_PITCH + a_word
        b_at = line * pitch + part * (SLICE // 2) + 4 * matrix
        v_at = (8 * (matrix & 1) + line) * pitch + 4 * (matrix >> 1) + part * (SLICE // 2)
        score_to = scores_at + part * rows_pitch + (16 * half + r) * SCORE_PITCH + 2 * c
        # the softmax of head h is done by ``sharing`` threads, each with ``rows_each`` rows of a tile
        h = divide(t, sharing)
        sub = t - h * sharing
        my_down = head_down[U64(h)]
        score_at = scores_at + h * SCORE_PITCH + sub * rows_each
        weight_to = weights_at + h * WEIGHT_PITCH + sub * (rows_each // 2)
        piece = I32(t & (row_pieces - 1))
        first_row = divide(t, row_pieces)
        top, total = LOWEST, ZERO
        out_sums = cuda.local.array(sums, f32)
        for i in range(sums):
            out_sums[i] = ZERO
        at, flip = I32(-TILE), I32(1)
        while at < end:
            # copy the next tile, then multiply this one; the first time there is none
            copy_wait0()
            cuda.syncthreads()
            after = I32(at + TILE)
            if after < end:
                to = (1 - flip) * tile_words
                for i in range(4):
                    row = first_row + I32(i * (TILE // 4))
                    number = numbers[U64((1 - flip) * TILE + row)]
                    word = to + row * pitch + 4 * piece
                    if number >= 0:
                        copy16(store, word, halves, number * (dim // 2) + 4 * piece)
                    elif number < -1:
                        copy16(store, word, comp, (-2 - number) * dim + 8 * piece)
                    else:
                        for j in range(4):
                            store[U64(word + j)] = I32(0)
                copy_commit()
            if at >= 0:
                tile = flip * tile_words
                for n in range(TILE // 8):
                    s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
                    for step in range(SLICE // 32):
                        b = matrices4(store, tile + b_at + 8 * n * pitch + 16 * step)
                        d = (ZERO, ZERO, ZERO, ZERO)
                        for k in range(2):
                            a = 16 * step + 8 * k
                            d = mma_f16(
                                queries[a + 4], queries[a + 5], queries[a + 6], queries[a + 7],
                                b[2 * k], b[2 * k + 1], d[0], d[1], d[2], d[3],
                            )  # fmt: skip
                        for k in range(2):
                            a = 16 * step + 8 * k
                            d = mma_f16(
                                queries[a], queries[a + 1], queries[a + 2], queries[a + 3],
                                b[2 * k], b[2 * k + 1], d[0], d[1], d[2], d[3],
                            )  # fmt: skip
                        s0, s1, s2, s3 = s0 + d[0], s1 + d[1], s2 + d[2], s3 + d[3]
                    word = score_to + 8 * n
                    store[U64(word)], store[U64(word + 1)] = float_bits(s0), float_bits(s1)
                    word += 8 * SCORE_PITCH
                    store[U64(word)], store[U64(word + 1)] = float_bits(s2), float_bits(s3)
                cuda.syncthreads()
                mine = cuda.local.array(rows_each, f32)
                new_top = top
                for i in range(rows_each):
                    s = ZERO
                    for p in range(slices):
                        s += bits_to_float(store[U64(score_at + p * rows_pitch + i)])
                    s = F32(s * my_down)
                    s = s if numbers[U64(flip * TILE + sub * rows_each + i)] != -1 else MINUS
                    mine[i] = s
                    new_top = s if s > new_top else new_top
                span = sharing >> 1
                while span > 0:
                    new_top = larger(new_top, shuffle_xor(new_top, span))
                    span >>= 1
                factor = exp32(F32(top - new_top))
                top = new_top
                weight = ZERO
                for i in range(rows_each):
                    p = exp32(F32(mine[i] - top))
                    weight += p
                    mine[i] = F32(p * UP)
                span = sharing >> 1
                while span > 0:
                    weight += shuffle_xor(weight, span)
                    span >>= 1
                total = F32(total * factor) + weight
                for i in range(rows_each // 2):
                    high, low = two_halves(mine[2 * i], mine[2 * i + 1])
                    store[U64(weight_to + i)] = high
                    store[U64(weight_to + weight_words + i)] = low
                if sub == 0:
                    factors[U64(h)] = factor
                cuda.syncthreads()
                if t < TILE:  # nobody reads this tile's numbers any more
                    numbers[U64(flip * TILE + t)] = number_of(
                        I32(at + 2 * TILE + t), end, window, begin, raw_rows, comp_rows, picked, selected, pick_at,
                        error, code,
                    )  # fmt: skip
                f0, f1 = factors[U64(16 * half + r)], factors[U64(16 * half + r + 8)]
                high0, high1 = matrices4(store, p_at), matrices4(store, p_at + 8)
                low0, low1 = matrices4(store, p_at + weight_words), matrices4(store, p_at + weight_words + 8)
                for n in range(SLICE // 16):
                    v0 = matrices4_turned(store, tile + v_at + 8 * n)
                    v1 = matrices4_turned(store, tile + v_at + 8 * n + 16 * pitch)
                    for k in range(2):
                        x0, x1, y0, y1 = v0[2 * k], v0[2 * k + 1], v1[2 * k], v1[2 * k + 1]
                        d = mma_f16(low0[0], low0[1], low0[2], low0[3], x0, x1, ZERO, ZERO, ZERO, ZERO)
                        d = mma_f16(low1[0], low1[1], low1[2], low1[3], y0, y1, d[0], d[1], d[2], d[3])
                        d = mma_f16(high0[0], high0[1], high0[2], high0[3], x0, x1, d[0], d[1], d[2], d[3])
                        d = mma_f16(high1[0], high1[1], high1[2], high1[3], y0, y1, d[0], d[1], d[2], d[3])
                        o = 8 * n + 4 * k
                        out_sums[o] = F32(out_sums[o] * f0) + d[0]
                        out_sums[o + 1] = F32(out_sums[o + 1] * f0) + d[1]
                        out_sums[o + 2] = F32(out_sums[o + 2] * f1) + d[2]
                        out_sums[o + 3] = F32(out_sums[o + 3] * f1) + d[3]
            at, flip = after, I32(1 - flip)
        # the sink enters into the denominator only; a NaN sink makes the result NaN
        cuda.syncthreads()
        if sub == 0 and h0 + h < heads:
            sink = sinks[h0 + h]
            last = larger(sink, top)
            share = exp32(F32(top - last))
            factors[U64(h)] = F32(F32(share * DOWN) / F32(F32(total * share) + exp32(F32(sink - last))))
        cuda.syncthreads()
        for k in range(2):
            head = 16 * half + 8 * k + r
            if h0 + head < heads:
                factor = factors[U64(head)]
                put = (token * heads + h0 + head) * dim + SLICE * part + 2 * c
                for n in range(SLICE // 8):
                    out[U64(put + 8 * n)] = F32(out_sums[4 * n + 2 * k] * factor)
                    out[U64(put + 8 * n + 1)] = F32(out_sums[4 * n + 2 * k + 1] * factor)

    return attend_rows


def attention_many(
    stream, out, error, lossy, q, halves, first_of, count_of, comp, comp_count, selected, sinks,
    tokens, heads, dim, raw_rows, comp_rows, picks, picked, scale, code,
):  # fmt: skip
    """Run ``attending.attention`` on rows of binary16, a ring's copy ``halves`` and ``comp``, unless lossy[0]."""
    groups = -(-heads // HEADS)
    args = (
        out, error, lossy, q, halves, first_of, count_of, comp, comp_count, selected, sinks,
        heads, groups, raw_rows, comp_rows, picks, picked, F32(scale), code,
    )  # fmt: skip
    compiled, dynamic = kernel(dim), dynamic_bytes(dim)
    allow_shared(compiled, dynamic, args, FIXED_BYTES)
    compiled[tokens * groups, (32, dim // 32), stream, dynamic](*args)
