"""Hyper-connections around a block, and elementwise arithmetic (docs/model.md 3, 9)."""

from __future__ import annotations

import numpy as np

from .launch import blocks_for, threads_for
from .maths import exp32, sigmoid32
from .shim import cuda

F32 = np.float32
TWO, LOWEST = F32(2), F32(-np.inf)


@cuda.jit
def copies_kernel(out, x, size, count, width):
    """Thread: one value of the result, (tokens, count, width)."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i // (count * width) * width + i % width]


def streams(stream, out, x, tokens, count, width):
    """``count`` copies of each of ``tokens`` vectors."""
    size = tokens * count * width
    threads = threads_for(size, 256, 1)
    copies_kernel[blocks_for(size, threads), threads, stream](out, x, size, count, width)


@cuda.jit(device=True)
def split_token(pre, post, comb, mix, scale, base, token, C, iters, eps):
    """All of ``hc_split`` for one token, by one thread. Sinkhorn runs in place in ``comb``."""
    m, p, k = token * C * (C + 2), token * C, token * C * C
    for i in range(C):
        pre[p + i] = sigmoid32(F32(mix[m + i] * scale[0] + base[i])) + eps
        post[p + i] = TWO * sigmoid32(F32(mix[m + C + i] * scale[1] + base[C + i]))
    for row in range(C):
        top = LOWEST
        for c in range(C):
            j = row * C + c
            value = F32(mix[m + 2 * C + j] * scale[2] + base[2 * C + j])
            comb[k + j] = value
            top = top if value <= top else value
        total = F32(0)
        for c in range(C):
            value = exp32(F32(comb[k + row * C + c] - top))
            comb[k + row * C + c] = value
            total += value
        for c in range(C):
            comb[k + row * C + c] = F32(comb[k + row * C + c] / total) + eps
    for step in range(iters):
        if step > 0:
            for row in range(C):
                total = F32(0)
                for c in range(C):
                    total += comb[k + row * C + c]
                for c in range(C):
                    comb[k + row * C + c] = F32(comb[k + row * C + c] / F32(total + eps))
        for c in range(C):
            total = F32(0)
            for row in range(C):
                total += comb[k + row * C + c]
            for row in range(C):
                comb[k + row * C + c] = F32(comb[k + row * C + c] / F32(total + eps))


@cuda.jit
def split_kernel(pre, post, comb, mix, scale, base, tokens, C, iters, eps):
    """Thread: one token."""
    for token in range(cuda.grid(1), tokens, cuda.gridsize(1)):
        split_token(pre, post, comb, mix, scale, base, token, C, iters, eps)


def hc_split(stream, pre, post, comb, mix, scale, base, tokens, C, iters, eps):
    """mix (tokens, C C + 2 C) to pre, post (tokens, C) and comb (tokens, C, C)."""
    threads = threads_for(tokens, 64, 1)
    split_kernel[blocks_for(tokens, threads), threads, stream](
        pre, post, comb, mix, scale, base, tokens, C, iters, F32(eps)
    )


@cuda.jit
def head_weights_kernel(out, mix, scale, base, size, C, eps):
    """Thread: one weight."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = sigmoid32(F32(mix[i] * scale[0] + base[i % C])) + eps


def hc_head_weights(stream, out, mix, scale, base, tokens, C, eps):
    """sigmoid(mix scale + base) + eps, (tokens, C)."""
    threads = threads_for(tokens * C, 64, 1)
    head_weights_kernel[blocks_for(tokens * C, threads), threads, stream](
        out, mix, scale, base, tokens * C, C, F32(eps)
    )


@cuda.jit
def reduce_kernel(out, X, w, C, D, parts):
    """Block: a part of one token's channels; thread: one of them."""
    token = cuda.blockIdx.x // parts
    first = cuda.blockIdx.x % parts * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(first, D, parts * cuda.blockDim.x):
        total = F32(0)
        for c in range(C):
            total += F32(w[token * C + c] * X[(token * C + c) * D + i])
        out[token * D + i] = total


def hc_reduce(stream, out, X, w, tokens, C, D):
    """sum_c w_c X_c, (tokens, D)."""
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    reduce_kernel[tokens * parts, threads, stream](out, X, w, C, D, parts)


@cuda.jit
def expand_kernel(out, X, y, post, comb, C, D, parts):
    """Block: a part of one token's channels; thread: one of them, in all streams."""
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
    """X'_k = post_k y + sum_j comb[j, k] X_j, (tokens, C, D)."""
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    expand_kernel[tokens * parts, threads, stream](out, X, y, post, comb, C, D, parts)


@cuda.jit
def add_kernel(out, a, b, size):
    """Thread: a value, and others a grid further."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


def add(stream, out, a, b, size):
    """a + b."""
    threads = threads_for(size, 256, 1)
    add_kernel[blocks_for(size, threads), threads, stream](out, a, b, size)


@cuda.jit
def scale_kernel(out, x, size, factor):
    """Thread: a value, and others a grid further."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i] * factor


def scale(stream, out, x, size, factor):
    """x times factor."""
    threads = threads_for(size, 256, 1)
    scale_kernel[blocks_for(size, threads), threads, stream](out, x, size, F32(factor))
