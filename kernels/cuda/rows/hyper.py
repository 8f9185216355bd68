"""Hyper-connections around a block, and elementwise arithmetic (docs/explanation/model.md 3, 9)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..driver.grids import MOST_THREADS, blocks_for, per_value, threads_for
from ..driver.intrinsics import divide, lane_value, sync_warp
from ..driver.shim import cuda, f32, f64
from .maths import ONE, exp32, sigmoid32, sqrt32
from .stages import block_sum

F32, I32, U64 = np.float32, np.int32, np.uint64
ZERO = F32(0)
TWO, LOWEST = F32(2), F32(-np.inf)
MOST, WARP = MOST_THREADS, 32
MOST_STREAMS = 16
"""Hyper-connection streams supported."""
TABLE = 2 * MOST_STREAMS * MOST_STREAMS
FEW = 256


@per_value()
def repeat(out, x, size, count, width):
    """Copy each of some vectors to ``count`` hyper-connection streams; ``size`` values in all."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i // (count * width) * width + i % width]


@cuda.jit(device=True)
def gate(mix, scale, base, token, C, part, i):
    """Return the sigmoid of logit i of a token's pre (``part`` 0) or post (1)."""
    at = part * C + i
    return sigmoid32(F32(mix[token * C * (C + 2) + at] * scale[part] + base[at]))


@cuda.jit(device=True)
def lane_pass(value, source, stride, C, eps):
    """Divide this lane's entry by the sum of the C entries of lanes source, source + stride ..."""
    total = F32(0)
    for _ in range(C):
        total += lane_value(value, source)
        source = I32(source + stride)
    return F32(value / F32(total + eps))


@cuda.jit(device=True)
def lane_passes(comb, token, C, iters, eps, table):
    """Run Sinkhorn on the second half of ``table`` -> comb, where every entry has a lane: columns, then rows and
    columns alternately."""
    lane, n = I32(cuda.threadIdx.x), I32(C * C)
    at = lane if lane < n else I32(0)
    row = divide(at, C)
    col = I32(at - row * C)
    value = lane_pass(table[n + at], col, C, C, eps)
    for _ in range(iters - 1):
        value = lane_pass(value, I32(row * C), 1, C, eps)
        value = lane_pass(value, col, C, C, eps)
    if lane < n:
        comb[token * n + lane] = value


@cuda.jit(device=True)
def table_pass(table, half, C, columns, eps):
    """Divide every entry by the sum of its column or row, from word ``half`` of ``table`` to its other half."""
    n = C * C
    for j in range(cuda.threadIdx.x, n, WARP):
        source = j % C if columns else j // C * C
        stride = C if columns else 1
        total = F32(0)
        for c in range(C):
            total += table[half + source + c * stride]
        table[n - half + j] = F32(table[half + j] / F32(total + eps))
    sync_warp()


@cuda.jit(device=True)
def table_passes(comb, token, C, iters, eps, table):
    """Run ``lane_passes`` for more entries than lanes; a pass goes from one half of ``table`` to the other."""
    n = C * C
    table_pass(table, n, C, True, eps)
    half = 0
    for _ in range(iters - 1):
        table_pass(table, half, C, False, eps)
        table_pass(table, n - half, C, True, eps)
    for j in range(cuda.threadIdx.x, n, WARP):
        comb[token * n + j] = table[half + j]


@cuda.jit(device=True)
def split_off(post, comb, mix, scale, base, token, C, iters, eps, table):
    """Compute post and comb of ``hc_split`` for one token with the first warp of a block, which alone calls this.

    ``table`` is shared, two times C C floats. So many short passes would cost a whole block more in barriers than in
    arithmetic.
    """
    lane, n, m = cuda.threadIdx.x, C * C, token * C * (C + 2)
    for i in range(lane, C, WARP):
        post[token * C + i] = TWO * gate(mix, scale, base, token, C, 1, i)
    for j in range(lane, n, WARP):
        table[j] = F32(mix[m + 2 * C + j] * scale[2] + base[2 * C + j])
    sync_warp()
    for j in range(lane, n, WARP):
        begin, top, total = j // C * C, LOWEST, F32(0)
        for c in range(C):
            value = table[begin + c]
            top = top if value <= top else value
        for c in range(C):
            total += exp32(F32(table[begin + c] - top))
        table[n + j] = F32(exp32(F32(table[j] - top)) / total) + eps
    sync_warp()
    if n <= WARP:
        lane_passes(comb, token, C, iters, eps, table)
    else:
        table_passes(comb, token, C, iters, eps, table)


@cuda.jit
def split_kernel(pre, post, comb, mix, scale, base, C, iters, eps):
    """Split one token per block of one warp."""
    table = cuda.shared.array(TABLE, f32)
    token = cuda.blockIdx.x
    for i in range(cuda.threadIdx.x, C, WARP):
        pre[token * C + i] = gate(mix, scale, base, token, C, 0, i) + eps
    split_off(post, comb, mix, scale, base, token, C, iters, eps, table)


def hc_split(stream, pre, post, comb, mix, scale, base, tokens, C, iters, eps):
    """Split mix (tokens, C C + 2 C) into pre, post (tokens, C) and comb (tokens, C, C)."""
    split_kernel[tokens, WARP, stream](pre, post, comb, mix, scale, base, C, iters, F32(eps))


class Enter(NamedTuple):
    """Numbers of ``hc_enter``: C streams of D values."""

    C: int
    D: int
    iters: int
    eps: np.float32
    weighted: bool
    norm_eps: np.float32


@cuda.jit(device=True)
def normed_sum(out, mix, scale, base, X, weight, token, e, pre, sums):
    """Compute the normed input of a layer for one token with the threads of a block; ``pre`` and ``sums`` are shared,
    one float a stream and one float64 a thread."""
    t, step, C, D = cuda.threadIdx.x, cuda.blockDim.x, e.C, e.D
    for i in range(t, C, step):
        pre[i] = gate(mix, scale, base, token, C, 0, i) + e.eps
    cuda.syncthreads()
    squares = 0.0
    for i in range(t, D, step):
        total = F32(0)
        for c in range(C):
            total += F32(pre[c] * X[(token * C + c) * D + i])
        out[token * D + i] = total
        squares += np.float64(total) * np.float64(total)
    mean = F32(block_sum(squares, sums) / D)
    rate = F32(ONE / sqrt32(F32(mean + e.norm_eps)))
    for i in range(t, D, step):
        y = F32(out[token * D + i] * rate)
        out[token * D + i] = F32(y * weight[i]) if e.weighted else y


@cuda.jit(device=True)
def enter(out, post, comb, mix, scale, base, X, weight, e):
    """Compute the normed input of a layer from mixing logits, one token per two blocks: what the layer waits for in
    one, what only its end needs in the other."""
    table = cuda.shared.array(TABLE, f32)
    pre = cuda.shared.array(MOST_STREAMS, f32)
    sums = cuda.shared.array(MOST, f64)
    token = cuda.blockIdx.x >> 1
    if cuda.blockIdx.x & 1 == 0:
        normed_sum(out, mix, scale, base, X, weight, token, e, pre, sums)
    elif cuda.threadIdx.x < WARP:
        split_off(post, comb, mix, scale, base, token, e.C, e.iters, e.eps, table)


@cuda.jit
def enter_kernel(out, post, comb, mix, scale, base, X, weight, e):
    enter(out, post, comb, mix, scale, base, X, weight, e)


def hc_enter(stream, out, post, comb, mix, scale, base, X, weight, tokens, e):
    """Fuse ``hc_split``, ``hc_reduce`` of X with its first result, and RMS norm of that (``joining``)."""
    enter_kernel[2 * tokens, threads_for(e.D, MOST), stream](out, post, comb, mix, scale, base, X, weight, e)


@per_value(64)
def hc_head_weights(out, mix, scale, base, size, C, eps):
    """Compute sigmoid(mix scale + base) + eps, (tokens, C)."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = sigmoid32(F32(mix[i] * scale[0] + base[i % C])) + eps


@cuda.jit
def reduce_kernel(out, X, w, C, D, parts):
    """Reduce one channel per thread; a block has a part of one token's channels."""
    token = cuda.blockIdx.x // parts
    first = cuda.blockIdx.x % parts * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(first, D, parts * cuda.blockDim.x):
        total = F32(0)
        for c in range(C):
            total += F32(w[token * C + c] * X[(token * C + c) * D + i])
        out[token * D + i] = total


def hc_reduce(stream, out, X, w, tokens, C, D):
    """Compute sum_c w_c X_c, (tokens, D)."""
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    reduce_kernel[tokens * parts, threads, stream](out, X, w, C, D, parts)


@cuda.jit
def expand_kernel(out, X, a, b, post, comb, C, D, parts, summed):
    """Expand one channel of a, or, if ``summed``, of a + b, in all hyper-connection streams, per thread; a block has a
    part of one token's channels."""
    token = cuda.blockIdx.x // parts
    first = cuda.blockIdx.x % parts * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(first, D, parts * cuda.blockDim.x):
        value = a[token * D + i]
        if summed:
            value = F32(value + b[token * D + i])
        for k in range(C):
            total = F32(post[token * C + k] * value)
            for j in range(C):
                total += F32(comb[(token * C + j) * C + k] * X[(token * C + j) * D + i])
            out[(token * C + k) * D + i] = total


def _expand(stream, out, X, a, b, post, comb, tokens, C, D, summed):
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    expand_kernel[tokens * parts, threads, stream](out, X, a, b, post, comb, C, D, parts, summed)


def hc_expand(stream, out, X, y, post, comb, tokens, C, D):
    """Compute X'_k = post_k y + sum_j comb[j, k] X_j, (tokens, C, D)."""
    _expand(stream, out, X, y, y, post, comb, tokens, C, D, False)


def hc_leave(stream, out, X, a, b, post, comb, tokens, C, D):
    """Fuse ``add`` and ``hc_expand`` of the sum (``joining``)."""
    _expand(stream, out, X, a, b, post, comb, tokens, C, D, True)


@per_value()
def add(out, a, b, size):
    """Compute a + b."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


@per_value()
def scale(out, x, size, factor):
    """Compute x * factor."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i] * factor


@cuda.jit
def remove_kernel(out, x, direction, n, factor):
    """Subtract factor d (d . x) from one row per block."""
    sums = cuda.shared.array(FEW, f64)
    t, base = cuda.threadIdx.x, cuda.blockIdx.x * n
    total = 0.0
    for i in range(t, n, cuda.blockDim.x):
        total += np.float64(x[base + i]) * np.float64(direction[i])
    along = F32(factor * F32(block_sum(total, sums)))
    for i in range(t, n, cuda.blockDim.x):
        out[base + i] = F32(x[base + i] - F32(along * direction[i]))


def remove_along(stream, out, x, direction, rows, n, factor):
    """Compute x - factor d (d . x), (rows, n)."""
    remove_kernel[rows, threads_for(n, FEW), stream](out, x, direction, n, F32(factor))
