"""Indexer scores of many tokens on tensor cores, where queries and rows are binary16 numbers (``indexing`` says what is
computed; queries are a copy, ``halving``).

A block scores ROWS rows for TOKENS tokens. Rows stay in registers, 32 a warp; a token's heads are copied while those of
the token before are multiplied. In modes that round to E2M1 the products of a block of 32 channels, whose scale they
share, are added exactly, so that a sum may stay on the tensor cores for all channels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.grids import tiles_for
from ..driver.intrinsics import (
    copy16,
    copy_commit,
    copy_wait0,
    divide,
    matrices4,
    mma_f16,
    shuffle_xor,
    word_at,
)
from ..driver.launching import allow_shared
from ..driver.shim import cuda, f32, i32, shared_limit
from .attending import PAD
from .indexing import relu

F32, I32, U64 = np.float32, np.int32, np.uint64
ZERO = F32(0)
WARPS, TOKENS = 8, 16
ROWS = 32 * WARPS
THREADS = 32 * WARPS
FEWEST = 2 * TOKENS
"""Tokens from which on there are blocks enough for a GPU."""
MOST_HEADS, MOST_DIM = 128, 128
WEIGHTS = 2 * MOST_HEADS
FIXED_BYTES = 4 * WEIGHTS


def dynamic_bytes(heads: int, dim: int) -> int:
    """Return the dynamic shared memory of a block: the heads of two tokens."""
    return 4 * 2 * heads * (dim // 2 + PAD)


def fits(tokens: int, heads: int, dim: int) -> bool:
    """Whether this module scores for so many tokens with such heads on this device."""
    sizes = heads % 8 == 0 and heads <= MOST_HEADS and dim % 32 == 0 and dim <= MOST_DIM
    return tokens >= FEWEST and sizes and dynamic_bytes(heads, dim) + FIXED_BYTES <= shared_limit()


@cache
def kernel(heads: int, dim: int) -> Any:
    """Make the kernel for so many heads of ``dim`` channels."""
    pitch, steps, row_pieces = dim // 2 + PAD, dim // 16, dim // 8
    pieces, buffer, held = heads * dim // 8, heads * (dim // 2 + PAD), 2 * 4 * (dim // 16)

    @cuda.jit(device=True)
    def fetch(store, weights, halves, w, token, flip, t):
        """Begin to copy the heads of a token, and read their weights."""
        for i in range(t, pieces, THREADS):
            head = divide(I32(i), row_pieces)
            word = flip * buffer + head * pitch + 4 * (i - head * row_pieces)
            copy16(store, word, halves, token * (heads * dim // 2) + 4 * i)
        copy_commit()
        if t < heads:
            weights[U64(flip * MOST_HEADS + t)] = w[U64(token * heads + t)]

    @cuda.jit
    def score_rows(out, lossy, halves, rows, w, count, tokens, n, tiles):
        """Score the rows of a tile for a group of tokens: out (tokens, n)."""
        store = cuda.shared.array(0, i32)
        weights = cuda.shared.array(WEIGHTS, f32)
        if lossy[0] != 0:
            return
        group = divide(I32(cuda.blockIdx.x), tiles)
        first = I32((I32(cuda.blockIdx.x) - group * tiles) * ROWS)
        limit = min(I32(n), I32(count[0]))
        if first >= limit:
            return
        lane, warp = I32(cuda.threadIdx.x), I32(cuda.threadIdx.y)
        t = I32(warp * 32 + lane)
        r, c = lane >> 2, lane & 3
        matrix, line = lane >> 3, lane & 7
        b_at = line * pitch + 4 * matrix
        mine = cuda.local.array(held, i32)
        for m in range(2):
            upper = I32(first + 32 * warp + 16 * m + r)
            lower = I32(min(I32(upper + 8), I32(limit - 1)))
            upper = I32(min(upper, I32(limit - 1)))
            for step in range(steps):
                at, to = 32 * step + 4 * c, 4 * (m * steps + step)
                mine[to], mine[to + 1] = word_at(rows, upper * (2 * dim) + at), word_at(rows, lower * (2 * dim) + at)
                at += 16
                mine[to + 2], mine[to + 3] = (
                    word_at(rows, upper * (2 * dim) + at),
                    word_at(rows, lower * (2 * dim) + at),
                )
        token, flip = I32(group * TOKENS), I32(0)
        end = min(I32(token + TOKENS), I32(tokens))
        row = I32(first + 32 * warp + r + 8 * c)
        fetch(store, weights, halves, w, token, flip, t)
        while token < end:
            copy_wait0()
            cuda.syncthreads()
            if token + 1 < end:
                fetch(store, weights, halves, w, I32(token + 1), I32(1 - flip), t)
            s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
            for eight in range(heads // 8):
                d, e = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
                for two in range(steps // 2):
                    b = matrices4(store, flip * buffer + b_at + 8 * eight * pitch + 16 * two)
                    for k in range(2):
                        a, p, q = 4 * (2 * two + k), b[2 * k], b[2 * k + 1]
                        d = mma_f16(mine[a], mine[a + 1], mine[a + 2], mine[a + 3], p, q, d[0], d[1], d[2], d[3])
                        a += 4 * steps
                        e = mma_f16(mine[a], mine[a + 1], mine[a + 2], mine[a + 3], p, q, e[0], e[1], e[2], e[3])
                at = flip * MOST_HEADS + 8 * eight + 2 * c
                w0, w1 = weights[U64(at)], weights[U64(at + 1)]
                s0 += relu(d[0]) * w0 + relu(d[1]) * w1
                s1 += relu(d[2]) * w0 + relu(d[3]) * w1
                s2 += relu(e[0]) * w0 + relu(e[1]) * w1
                s3 += relu(e[2]) * w0 + relu(e[3]) * w1
            s0 += shuffle_xor(s0, 1)
            s1 += shuffle_xor(s1, 1)
            s2 += shuffle_xor(s2, 1)
            s3 += shuffle_xor(s3, 1)
            s0 += shuffle_xor(s0, 2)
            s1 += shuffle_xor(s1, 2)
            s2 += shuffle_xor(s2, 2)
            s3 += shuffle_xor(s3, 2)
            # lane c of four stores the c-th of their rows
            s0 = s1 if c == 1 else s0
            s0 = s2 if c == 2 else s0
            s0 = s3 if c == 3 else s0
            if row < limit:
                out[U64(np.int64(token) * n + row)] = s0
            token, flip = I32(token + 1), I32(1 - flip)

    return score_rows


def index_scores_many(stream, out, lossy, halves, rows, w, count, tokens, n, heads, dim):
    """Run ``indexing.index_scores`` with queries ``halves`` (tokens, heads, dim / 2 words), unless lossy[0]."""
    tiles = tiles_for(n, ROWS)
    args = out, lossy, halves, rows, w, count, tokens, n, tiles
    compiled, dynamic = kernel(heads, dim), dynamic_bytes(heads, dim)
    allow_shared(compiled, dynamic, args, FIXED_BYTES)
    compiled[tiles * tiles_for(tokens, TOKENS), (32, WARPS), stream, dynamic](*args)
