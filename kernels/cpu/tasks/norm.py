"""RMS norm and the hyper-connection arithmetic (docs/explanation/model.md 3, 9)."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from .lang import FAST, exp32, f32p, sigmoid32
from .registry import body

ONE, TWO = np.float32(1), np.float32(2)
SMALLEST = np.float32(1e-6)


@njit(**FAST)
def sum_of_squares(x, n):
    """Sum squares in float64; compiled, that is 8 interleaved partial sums: a fixed order, and fast enough that reading
    memory takes longer."""
    total = 0.0
    for i in range(n):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@body(t.RMS_NORM)
def rms_norm(args, first, last, thread):
    """Normalize rows of n values (the items); if the address ``weight`` is 0 there are no weights."""
    n = args.n
    eps = np.float32(args.eps)
    for r in range(first, last):
        x, out = f32p(args.x + 4 * n * r), f32p(args.out + 4 * n * r)
        mean = np.float32(sum_of_squares(x, n) / n)
        scale = ONE / np.sqrt(mean + eps)
        if args.weight == 0:
            for i in range(n):
                out[i] = x[i] * scale
        else:
            weight = f32p(args.weight)
            for i in range(n):
                out[i] = x[i] * scale * weight[i]


@njit(**FAST)
def dot(x, y, n):
    """Sum products in float64, as ``sum_of_squares`` does."""
    total = 0.0
    for i in range(n):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@body(t.REMOVE_ALONG)
def remove_along(args, first, last, thread):
    """Subtract factor d (d . x) from rows of n values (the items)."""
    n, direction = args.n, f32p(args.direction)
    factor = np.float32(args.factor)
    for r in range(first, last):
        x, out = f32p(args.x + 4 * n * r), f32p(args.out + 4 * n * r)
        along = factor * np.float32(dot(x, direction, n))
        for i in range(n):
            out[i] = x[i] - along * direction[i]


@body(t.HC_SPLIT, exact=True)
def hc_split(args, first, last, thread):
    """Convert mixing logits to stream weights; items are tokens. Sinkhorn's iterations run in place in ``comb``."""
    C, iters = args.C, args.iters
    eps = np.float32(args.eps)
    scale, base = f32p(args.scale), f32p(args.base)
    width = 2 * C + C * C
    for token in range(first, last):
        mix = f32p(args.mix + 4 * width * token)
        pre, post = f32p(args.pre + 4 * C * token), f32p(args.post + 4 * C * token)
        comb = f32p(args.comb + 4 * C * C * token)
        for i in range(C):
            pre[i] = sigmoid32(mix[i] * scale[0] + base[i]) + eps
            post[i] = TWO * sigmoid32(mix[C + i] * scale[1] + base[C + i])
        for row in range(C):
            top = np.float32(-np.inf)
            for c in range(C):
                k = row * C + c
                value = mix[2 * C + k] * scale[2] + base[2 * C + k]
                comb[k] = value
                top = max(top, value)
            total = np.float32(0)
            for c in range(C):
                value = exp32(comb[row * C + c] - top)
                comb[row * C + c] = value
                total += value
            for c in range(C):
                comb[row * C + c] = comb[row * C + c] / total + eps
        for step in range(iters):
            if step > 0:
                for row in range(C):
                    total = np.float32(0)
                    for c in range(C):
                        total += comb[row * C + c]
                    for c in range(C):
                        comb[row * C + c] /= total + eps
            for c in range(C):
                total = np.float32(0)
                for row in range(C):
                    total += comb[row * C + c]
                for row in range(C):
                    comb[row * C + c] /= total + eps


@body(t.HC_HEAD_WEIGHTS, exact=True)
def hc_head_weights(args, first, last, thread):
    """Compute the output head's stream weights; items are tokens."""
    C = args.C
    eps = np.float32(args.eps)
    scale, base = f32p(args.scale)[0], f32p(args.base)
    for token in range(first, last):
        mix, out = f32p(args.mix + 4 * C * token), f32p(args.out + 4 * C * token)
        for i in range(C):
            out[i] = sigmoid32(mix[i] * scale + base[i]) + eps


@body(t.HC_REDUCE, exact=True)
def hc_reduce(args, first, last, thread):
    """Compute out = sum_c w_c X_c; items are tokens."""
    C, D = args.C, args.D
    for token in range(first, last):
        w, out = f32p(args.w + 4 * C * token), f32p(args.out + 4 * D * token)
        for c in range(C):
            x = f32p(args.X + 4 * D * (C * token + c))
            wc = w[c]
            if c == 0:
                for i in range(D):
                    out[i] = wc * x[i]
            else:
                for i in range(D):
                    out[i] += wc * x[i]


@body(t.HC_EXPAND, exact=True)
def hc_expand(args, first, last, thread):
    """Compute out_k = post_k y + sum_j comb[j][k] X_j; items are (token, target stream)."""
    C, D = args.C, args.D
    for item in range(first, last):
        token, k = item // C, item % C
        y, out = f32p(args.y + 4 * D * token), f32p(args.out + 4 * D * item)
        comb = f32p(args.comb + 4 * C * C * token)
        post = f32p(args.post + 4 * C * token)[k]
        for i in range(D):
            out[i] = post * y[i]
        for j in range(C):
            weight = comb[j * C + k]
            x = f32p(args.X + 4 * D * (C * token + j))
            for i in range(D):
                out[i] += weight * x[i]


@njit(**FAST)
def weighted_dot(x, y, weight, n):
    """Sum x y weight in float64, as ``sum_of_squares`` does."""
    total = 0.0
    for i in range(n):
        total += np.float64(x[i]) * np.float64(y[i]) * np.float64(weight[i])
    return total


@body(t.ENGRAM_GATE, exact=True)
def engram_gate(args, first, last, thread):
    """Add a token's value to its streams, times a gate; items are (token, stream)."""
    C, D, eps = args.C, args.D, np.float32(args.eps)
    for item in range(first, last):
        joined = args.joined + 4 * D * (C + 1) * (item // C)
        x, key, value = f32p(args.X + 4 * D * item), f32p(joined + 4 * D * (item % C)), f32p(joined + 4 * D * C)
        of_stream = np.sqrt(np.float32(sum_of_squares(x, D) / D) + eps)
        of_key = np.sqrt(np.float32(sum_of_squares(key, D) / D) + eps)
        product = np.float32(weighted_dot(x, key, f32p(args.weight + 4 * D * (item % C)), D))
        s = product / of_stream / of_key / np.sqrt(np.float32(D))
        size = abs(s)
        root = np.sqrt(SMALLEST if size < SMALLEST else size)  # a NaN stays one
        gate = sigmoid32(-root if s < 0 else root)
        out = f32p(args.out + 4 * D * item)
        for i in range(D):
            out[i] = x[i] + gate * value[i]
