"""RMS norm and hyper-connections (signatures as in ``kernels.reference.norm`` and ``.hyper``)."""

from __future__ import annotations

import math

import numpy as np

from ..formats.matrix import Matrix
from . import gemm
from . import tasktable as t
from .arrays import address, chunk_of, expect, f32
from .linear import linear, linear_steps, packed_size
from .workers import POOL
from .workspace import scratch


def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    """x (..., n), weight (n,) or None -> same shape. Sum of squares in float64."""
    x = f32(x, "x")
    n = x.shape[-1]
    out = np.empty(x.shape, np.float32)
    place = 0
    if weight is not None:
        weight = f32(weight, "weight")
        expect(weight.shape == (n,), "rms_norm", x.shape, weight.shape)
        place = address(weight)
    rows = x.size // n if n else 0
    POOL.run((t.RMS_NORM, rows, chunk_of(rows, n, POOL.threads), (address(x), place, address(out), n, eps)))
    return out


def hc_mix(X: np.ndarray, fn: Matrix, eps: float) -> np.ndarray:
    """Streams X (T, C, D) -> (T, rows of fn): RMS norm over all C*D values, then fn on float activations."""
    X = f32(X, "X")
    tokens = X.shape[0]
    n = X.size // max(tokens, 1)
    expect(X.ndim == 3 and n == fn.cols, "hc_mix", X.shape, fn.cols)
    if gemm.wanted(tokens, fn, "float") is not None:
        return linear(rms_norm(X.reshape(tokens, n), None, eps), fn, "float")
    out = np.empty((tokens, fn.rows), np.float32)
    flat, packed = scratch(4 * n * tokens, tokens * packed_size(fn, "float"))
    POOL.run(
        (t.RMS_NORM, tokens, chunk_of(tokens, n, POOL.threads), (address(X), 0, flat, n, eps)),
        *linear_steps(flat, tokens, 1, fn, "float", packed, address(out)),
    )
    return out


def hc_split(
    mix: np.ndarray, scale: np.ndarray, base: np.ndarray, iters: int, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits (T, 2C + C*C) -> pre (T, C), post (T, C), comb (T, C, C), comb by ``iters`` Sinkhorn passes."""
    mix, scale, base = f32(mix, "mix"), f32(scale, "scale"), f32(base, "base")
    tokens, width = mix.shape
    C = math.isqrt(width + 1) - 1
    expect(C * (C + 2) == width and base.shape == (width,) and scale.shape == (3,), "hc_split", mix.shape, base.shape)
    pre, post = np.empty((tokens, C), np.float32), np.empty((tokens, C), np.float32)
    comb = np.empty((tokens, C, C), np.float32)
    values = (address(mix), address(scale), address(base), address(pre), address(post), address(comb), C, iters, eps)
    POOL.run((t.HC_SPLIT, tokens, chunk_of(tokens, 4 * iters * C * C, POOL.threads), values))
    return pre, post, comb


def hc_head_weights(mix: np.ndarray, scale: np.ndarray, base: np.ndarray, eps: float) -> np.ndarray:
    """sigmoid(mix * scale + base) + eps, (T, C)."""
    mix, scale, base = f32(mix, "mix"), f32(scale, "scale"), f32(base, "base")
    tokens, C = mix.shape
    expect(base.shape == (C,) and scale.shape == (1,), "hc_head_weights", mix.shape, scale.shape, base.shape)
    out = np.empty((tokens, C), np.float32)
    values = (address(mix), address(scale), address(base), address(out), C, eps)
    POOL.run((t.HC_HEAD_WEIGHTS, tokens, chunk_of(tokens, 16 * C, POOL.threads), values))
    return out


def hc_reduce(X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """X (T, C, D), w (T, C) -> (T, D): weighted sum of streams."""
    X, w = f32(X, "X"), f32(w, "w")
    expect(X.ndim == 3 and w.shape == X.shape[:2], "hc_reduce", X.shape, w.shape)
    tokens, C, D = X.shape
    out = np.empty((tokens, D), np.float32)
    POOL.run((t.HC_REDUCE, tokens, chunk_of(tokens, C * D, POOL.threads), (address(X), address(w), address(out), C, D)))
    return out


def hc_expand(X: np.ndarray, y: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """X'_k = post_k y + sum_j comb[j][k] X_j; X (T, C, D), y (T, D), post (T, C), comb (T, C, C)."""
    X, y, post, comb = f32(X, "X"), f32(y, "y"), f32(post, "post"), f32(comb, "comb")
    expect(X.ndim == 3, "hc_expand", X.shape)
    tokens, C, D = X.shape
    fits = y.shape == (tokens, D) and post.shape == (tokens, C) and comb.shape == (tokens, C, C)
    expect(fits, "hc_expand", X.shape, y.shape, post.shape, comb.shape)
    out = np.empty((tokens, C, D), np.float32)
    values = (address(X), address(y), address(post), address(comb), address(out), C, D)
    POOL.run((t.HC_EXPAND, tokens * C, chunk_of(tokens * C, C * D, POOL.threads), values))
    return out
