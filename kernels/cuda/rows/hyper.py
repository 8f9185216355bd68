"""Hyper-connections (residual streams before and after a block), and elementwise arithmetic (docs/explanation/model.md
3, 9)."""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for, per_value, threads_for
from ..driver.intrinsics import sync_warp
from ..driver.shim import cuda, f32, f64
from .maths import exp32, sigmoid32, sqrt64
from .stages import block_sum

F32, I32, U64 = np.float32, np.int32, np.uint64
ZERO = F32(0)
TWO, LOWEST = F32(2), F32(-np.inf)
WARP = 32
MOST_STREAMS = 16
"""Maximum number of residual streams."""
TABLE = 2 * MOST_STREAMS * MOST_STREAMS
FEW = 256
SMALLEST = 1e-6


@per_value()
def repeat(out, x, size, count, width):
    """Copy every vector of ``width`` values to ``count`` residual streams; ``size`` values in total."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i // (count * width) * width + i % width]


@cuda.jit(device=True)
def gate(mix, scale, base, token, C, part, i):
    """Return the sigmoid of mixing logit i of a token: of those for pre (``part`` 0) or post (``part`` 1)."""
    at = part * C + i
    return sigmoid32(F32(mix[token * C * (C + 2) + at] * scale[part] + base[at]))


@cuda.jit(device=True)
def table_pass(table, half, C, columns, eps):
    """Divide every entry of a C x C matrix by the sum of its column or row, plus eps.

    ``table`` has two halves of C * C values; the matrix is read from index ``half`` on and written to the other half.
    """
    n = C * C
    for j in range(cuda.threadIdx.x, n, WARP):
        source = j % C if columns else j // C * C
        stride = C if columns else 1
        total = F32(0)
        for c in range(C):
            total += table[half + source + c * stride]
        table[n - half + j] = F32(table[half + j] / F32(total + eps))
    sync_warp()


@cuda.jit
def split_kernel(pre, post, comb, mix, scale, base, C, iters, eps):
    """Convert the mixing logits of one token per thread block, which has one warp: in so many short passes a larger one
    would spend more time at barriers than on arithmetic."""
    table = cuda.shared.array(TABLE, f32)
    token, lane, n = cuda.blockIdx.x, cuda.threadIdx.x, C * C
    m = token * C * (C + 2)
    for i in range(lane, C, WARP):
        pre[token * C + i] = gate(mix, scale, base, token, C, 0, i) + eps
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
    # Sinkhorn: columns, then rows and columns alternately; a pass goes from one half of the table to the other
    table_pass(table, n, C, True, eps)
    half = 0
    for _ in range(iters - 1):
        table_pass(table, half, C, False, eps)
        table_pass(table, n - half, C, True, eps)
    for j in range(lane, n, WARP):
        comb[token * n + j] = table[half + j]


def hc_split(stream, pre, post, comb, mix, scale, base, tokens, C, iters, eps):
    """Convert mixing logits mix (tokens, C C + 2 C) to stream weights pre, post (tokens, C) and comb (tokens, C, C)."""
    split_kernel[tokens, WARP, stream](pre, post, comb, mix, scale, base, C, iters, F32(eps))


@per_value(64)
def hc_head_weights(out, mix, scale, base, size, C, eps):
    """Compute sigmoid(mix scale + base) + eps, (tokens, C)."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = sigmoid32(F32(mix[i] * scale[0] + base[i % C])) + eps


@cuda.jit
def reduce_kernel(out, X, w, C, D, parts):
    """Compute one channel of the sum per thread; a thread block has some of one token's channels."""
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
def expand_kernel(out, X, y, post, comb, C, D, parts):
    """Compute one channel of all streams per thread; a thread block has some of one token's channels."""
    token = cuda.blockIdx.x // parts
    first = cuda.blockIdx.x % parts * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(first, D, parts * cuda.blockDim.x):
        value = y[token * D + i]
        for k in range(C):
            total = F32(post[token * C + k] * value)
            for j in range(C):
                total += F32(comb[(token * C + j) * C + k] * X[(token * C + j) * D + i])
            out[(token * C + k) * D + i] = total


def hc_expand(stream, out, X, y, post, comb, tokens, C, D):
    """Compute X'_k = post_k y + sum_j comb[j, k] X_j, (tokens, C, D)."""
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    expand_kernel[tokens * parts, threads, stream](out, X, y, post, comb, C, D, parts)


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


@cuda.jit
def engram_kernel(out, X, joined, weight, C, D, eps):
    """Add a token's value to one of its streams per block, times a gate."""
    sums = cuda.shared.array(FEW, f64)
    t, base, stream = cuda.threadIdx.x, cuda.blockIdx.x * D, cuda.blockIdx.x % C
    key = cuda.blockIdx.x // C * (C + 1) * D + stream * D
    value = key + (C - stream) * D
    product, of_stream, of_key = 0.0, 0.0, 0.0
    for i in range(t, D, cuda.blockDim.x):
        x, k = np.float64(X[base + i]), np.float64(joined[key + i])
        product += x * k * np.float64(weight[stream * D + i])
        of_stream += x * x
        of_key += k * k
    of_stream, of_key = block_sum(of_stream, sums) / D + eps, block_sum(of_key, sums) / D + eps
    s = block_sum(product, sums) / (sqrt64(of_stream) * sqrt64(of_key)) / sqrt64(np.float64(D))
    size = -s if s < 0.0 else s
    root = F32(sqrt64(SMALLEST if size < SMALLEST else size))
    factor = sigmoid32(F32(-root) if s < 0.0 else root)
    for i in range(t, D, cuda.blockDim.x):
        out[base + i] = F32(X[base + i] + F32(factor * joined[value + i]))


def engram_gate(stream, out, X, joined, weight, tokens, C, D, eps):
    """Add sigmoid(sign(s) sqrt(max(|s|, 1e-6))) value to each stream, (tokens, C, D)."""
    engram_kernel[tokens * C, threads_for(D, FEW), stream](out, X, joined, weight, C, D, eps)
