"""Hyper-connections around a block, and elementwise arithmetic (docs/explanation/model.md 3, 9)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..driver.grids import MOST_THREADS, blocks_for, threads_for
from ..driver.intrinsics import bits_to_float, divide, float_bits, lane_value, put4, read4, sync_warp
from ..driver.shim import cuda, f32, f64
from .maths import ONE, exp32, sigmoid32, sqrt32
from .stages import block_sum

F32, I32, U64 = np.float32, np.int32, np.uint64
ZERO = F32(0)
TWO, LOWEST = F32(2), F32(-np.inf)
MOST, WARP = MOST_THREADS, 32
MOST_STREAMS = 16
"""Hyper-connection streams supported."""
MOST_IN_REGISTERS = 4
"""Streams whose mixing weights a thread keeps."""
FOURS = 256
"""Threads of a block that takes four channels a thread."""
TABLE = 2 * MOST_STREAMS * MOST_STREAMS


@cuda.jit
def copies_kernel(out, x, size, count, width):
    """Compute one value of the result (tokens, count, width) per thread."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i // (count * width) * width + i % width]


def repeat(stream, out, x, tokens, count, width):
    """Copy each of ``tokens`` vectors to ``count`` hyper-connection streams."""
    size = tokens * count * width
    threads = threads_for(size, 256, 1)
    copies_kernel[blocks_for(size, threads), threads, stream](out, x, size, count, width)


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


@cuda.jit(device=True)
def normed_sum(out, mix, scale, base, X, weight, token, C, D, eps, weighted, norm_eps, pre, sums):
    """Compute the normed input of a layer for one token with the threads of a block; ``pre`` and ``sums`` are shared,
    one float a stream and one float64 a thread."""
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    for i in range(t, C, step):
        pre[i] = gate(mix, scale, base, token, C, 0, i) + eps
    cuda.syncthreads()
    squares = 0.0
    for i in range(t, D, step):
        total = F32(0)
        for c in range(C):
            total += F32(pre[c] * X[(token * C + c) * D + i])
        out[token * D + i] = total
        squares += np.float64(total) * np.float64(total)
    mean = F32(block_sum(squares, sums) / D)
    rate = F32(ONE / sqrt32(F32(mean + norm_eps)))
    for i in range(t, D, step):
        y = F32(out[token * D + i] * rate)
        out[token * D + i] = F32(y * weight[i]) if weighted else y


@cuda.jit
def enter_kernel(out, post, comb, mix, scale, base, X, weight, C, D, iters, eps, weighted, norm_eps):
    """Compute the normed input of a layer from mixing logits, one token per two blocks: what the layer waits for in
    one, what only its end needs in the other."""
    table = cuda.shared.array(TABLE, f32)
    pre = cuda.shared.array(MOST_STREAMS, f32)
    sums = cuda.shared.array(MOST, f64)
    token = cuda.blockIdx.x >> 1
    if cuda.blockIdx.x & 1 == 0:
        normed_sum(out, mix, scale, base, X, weight, token, C, D, eps, weighted, norm_eps, pre, sums)
    elif cuda.threadIdx.x < WARP:
        split_off(post, comb, mix, scale, base, token, C, iters, eps, table)


def hc_enter(stream, out, post, comb, mix, scale, base, X, weight, tokens, C, D, iters, eps, weighted, norm_eps):
    """Fuse ``hc_split``, ``hc_reduce`` of X with its first result, and RMS norm of that (``joining``)."""
    enter_kernel[2 * tokens, threads_for(D, MOST), stream](
        out, post, comb, mix, scale, base, X, weight, C, D, iters, F32(eps), weighted, F32(norm_eps)
    )


@cuda.jit
def head_weights_kernel(out, mix, scale, base, size, C, eps):
    """Compute one weight per thread."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = sigmoid32(F32(mix[i] * scale[0] + base[i % C])) + eps


def hc_head_weights(stream, out, mix, scale, base, tokens, C, eps):
    """Compute sigmoid(mix scale + base) + eps, (tokens, C)."""
    threads = threads_for(tokens * C, 64, 1)
    head_weights_kernel[blocks_for(tokens * C, threads), threads, stream](
        out, mix, scale, base, tokens * C, C, F32(eps)
    )


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


@cuda.jit
def reduce4_kernel(out, X, w, C, D):
    """Reduce one token per block, four channels per thread at a time."""
    token, four = I32(cuda.blockIdx.x), I32(4 * cuda.threadIdx.x)
    while four < D:
        a = b = c = d = ZERO
        for j in range(C):
            weight = w[U64(token * C + j)]
            x = read4(X, (token * C + j) * D + four)
            a += F32(weight * bits_to_float(x[0]))
            b += F32(weight * bits_to_float(x[1]))
            c += F32(weight * bits_to_float(x[2]))
            d += F32(weight * bits_to_float(x[3]))
        put4(out, token * D + four, float_bits(a), float_bits(b), float_bits(c), float_bits(d))
        four += I32(4 * cuda.blockDim.x)


def hc_reduce(stream, out, X, w, tokens, C, D):
    """Compute sum_c w_c X_c, (tokens, D)."""
    if D % 4 == 0:
        reduce4_kernel[tokens, threads_for(D // 4, FOURS), stream](out, X, w, C, D)
        return
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    reduce_kernel[tokens * parts, threads, stream](out, X, w, C, D, parts)


@cuda.jit
def expand_kernel(out, X, y, post, comb, C, D, parts):
    """Expand one channel, in all hyper-connection streams, per thread; a block has a part of one token's channels."""
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
    if in_fours(C, D):
        _expand4(C, False)[tokens, threads_for(D // 4, FOURS), stream](out, X, y, y, post, comb, D)
        return
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    expand_kernel[tokens * parts, threads, stream](out, X, y, post, comb, C, D, parts)


@cache
def _expand4(C: int, summed: bool) -> Any:
    """Make ``expand_kernel`` for C streams, or, if ``summed``, ``leave_kernel``, four channels per thread at a time: a
    block has one token, whose weights stay in registers."""
    entries, held = C * C, 4 * C

    @cuda.jit
    def expand4(out, X, a, b, post, comb, D):
        token, four = I32(cuda.blockIdx.x), I32(4 * cuda.threadIdx.x)
        mixing, own, x = cuda.local.array(entries, f32), cuda.local.array(C, f32), cuda.local.array(held, f32)
        for i in range(entries):
            mixing[i] = comb[U64(token * entries + i)]
        for k in range(C):
            own[k] = post[U64(token * C + k)]
        while four < D:
            y = read4(a, token * D + four)
            y0, y1, y2, y3 = bits_to_float(y[0]), bits_to_float(y[1]), bits_to_float(y[2]), bits_to_float(y[3])
            if summed:
                y = read4(b, token * D + four)
                y0, y1 = F32(y0 + bits_to_float(y[0])), F32(y1 + bits_to_float(y[1]))
                y2, y3 = F32(y2 + bits_to_float(y[2])), F32(y3 + bits_to_float(y[3]))
            for j in range(C):
                z = read4(X, (token * C + j) * D + four)
                x[4 * j], x[4 * j + 1] = bits_to_float(z[0]), bits_to_float(z[1])
                x[4 * j + 2], x[4 * j + 3] = bits_to_float(z[2]), bits_to_float(z[3])
            for k in range(C):
                t0, t1, t2, t3 = F32(own[k] * y0), F32(own[k] * y1), F32(own[k] * y2), F32(own[k] * y3)
                for j in range(C):
                    weight = mixing[j * C + k]
                    t0 += F32(weight * x[4 * j])
                    t1 += F32(weight * x[4 * j + 1])
                    t2 += F32(weight * x[4 * j + 2])
                    t3 += F32(weight * x[4 * j + 3])
                put4(
                    out, (token * C + k) * D + four, float_bits(t0), float_bits(t1), float_bits(t2), float_bits(t3)
                )  # fmt: skip
            four += I32(4 * cuda.blockDim.x)

    return expand4


def in_fours(C: int, D: int) -> bool:
    """Whether streams are expanded four channels at a time."""
    return D % 4 == 0 and C <= MOST_IN_REGISTERS


@cuda.jit
def leave_kernel(out, X, a, b, post, comb, C, D, parts):
    """Run ``expand_kernel`` on y = a + b."""
    token = cuda.blockIdx.x // parts
    first = cuda.blockIdx.x % parts * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(first, D, parts * cuda.blockDim.x):
        value = F32(a[token * D + i] + b[token * D + i])
        for k in range(C):
            total = F32(post[token * C + k] * value)
            for j in range(C):
                total += F32(comb[(token * C + j) * C + k] * X[(token * C + j) * D + i])
            out[(token * C + k) * D + i] = total


def hc_leave(stream, out, X, a, b, post, comb, tokens, C, D):
    """Fuse ``add`` and ``hc_expand`` of the sum (``joining``)."""
    if in_fours(C, D):
        _expand4(C, True)[tokens, threads_for(D // 4, FOURS), stream](out, X, a, b, post, comb, D)
        return
    threads = threads_for(D, 128, 1)
    parts = blocks_for(D, threads)
    leave_kernel[tokens * parts, threads, stream](out, X, a, b, post, comb, C, D, parts)


@cuda.jit
def add_kernel(out, a, b, size):
    """Add values in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


@cuda.jit
def add4_kernel(out, a, b, size):
    """Add four values per thread."""
    i = 4 * cuda.grid(1)
    if i < size:
        x, y = read4(a, i), read4(b, i)
        put4(
            out, i,
            float_bits(F32(bits_to_float(x[0]) + bits_to_float(y[0]))),
            float_bits(F32(bits_to_float(x[1]) + bits_to_float(y[1]))),
            float_bits(F32(bits_to_float(x[2]) + bits_to_float(y[2]))),
            float_bits(F32(bits_to_float(x[3]) + bits_to_float(y[3]))),
        )  # fmt: skip


def add(stream, out, a, b, size, width):
    """Compute a + b, arrays of rows of ``width`` values."""
    if width % 4 == 0:
        add4_kernel[blocks_for(size // 4, 256), 256, stream](out, a, b, size)
        return
    threads = threads_for(size, 256, 1)
    add_kernel[blocks_for(size, threads), threads, stream](out, a, b, size)


@cuda.jit
def scale_kernel(out, x, size, factor):
    """Scale values in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[i] * factor


def scale(stream, out, x, size, factor):
    """Compute x * factor."""
    threads = threads_for(size, 256, 1)
    scale_kernel[blocks_for(size, threads), threads, stream](out, x, size, F32(factor))


@cuda.jit
def remove_kernel(out, x, direction, n, factor):
    """Subtract factor d (d . x) from one row per block."""
    sums = cuda.shared.array(FOURS, f64)
    t, base = cuda.threadIdx.x, cuda.blockIdx.x * n
    total = 0.0
    for i in range(t, n, cuda.blockDim.x):
        total += np.float64(x[base + i]) * np.float64(direction[i])
    along = F32(factor * F32(block_sum(total, sums)))
    for i in range(t, n, cuda.blockDim.x):
        out[base + i] = F32(x[base + i] - F32(along * direction[i]))


def remove_along(stream, out, x, direction, rows, n, factor):
    """Compute x - factor d (d . x), (rows, n)."""
    remove_kernel[rows, threads_for(n, FOURS), stream](out, x, direction, n, F32(factor))
