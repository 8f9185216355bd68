"""Hyper-connections: C parallel residual streams, mixed before and after every layer (model.md 3, 9)."""

from __future__ import annotations

import numpy as np

from ..formats.matrix import Matrix
from .linear import linear
from .norm import rms_norm


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function in float64, without overflow."""
    x = x.astype(np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def streams(x: np.ndarray, count: int) -> np.ndarray:
    """Copy every token's vector to ``count`` streams: x (T, D) -> (T, count, D)."""
    return np.repeat(x[:, None, :], count, axis=1)


def hc_mix(X: np.ndarray, fn: Matrix, eps: float) -> np.ndarray:
    """Compute mixing logits (T, rows of fn) of streams X (T, C, D): RMS-norm all C*D values together, multiply by
    fn."""
    flat = rms_norm(X.reshape(X.shape[0], -1), None, eps)
    return linear(flat, fn, "float")


def hc_split(
    mix: np.ndarray, scale: np.ndarray, base: np.ndarray, iters: int, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Convert mixing logits (T, 2C + C*C) to stream weights: pre (T, C) and post (T, C), by which a block reads from
    and adds to the streams, and comb (T, C, C), which mixes them.

    pre is a sigmoid plus eps, post twice a sigmoid. comb is made doubly stochastic by Sinkhorn's algorithm: row softmax
    plus eps, a column normalisation, then iters - 1 rounds of row and column normalisation.
    """
    T, m = mix.shape
    C = int(np.sqrt(m + 1)) - 1
    mix = mix.astype(np.float64)
    pre = _sigmoid(mix[:, :C] * scale[0] + base[:C]) + eps
    post = 2 * _sigmoid(mix[:, C : 2 * C] * scale[1] + base[C : 2 * C])
    A = (mix[:, 2 * C :] * scale[2] + base[2 * C :]).reshape(T, C, C)
    A = np.exp(A - A.max(axis=2, keepdims=True))
    A = A / A.sum(axis=2, keepdims=True) + eps
    A /= A.sum(axis=1, keepdims=True) + eps
    for _ in range(iters - 1):
        A /= A.sum(axis=2, keepdims=True) + eps
        A /= A.sum(axis=1, keepdims=True) + eps
    return pre.astype(np.float32), post.astype(np.float32), A.astype(np.float32)


def hc_reduce(X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the weighted sum of streams: X (T, C, D), w (T, C) -> (T, D)."""
    return np.einsum("tcd,tc->td", X.astype(np.float64), w).astype(np.float32)


def hc_expand(X: np.ndarray, y: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """Expand block output y (T, D) into the streams: X'_k = post_k y + sum_j comb[j][k] X_j (first index: source)."""
    mixed = np.einsum("tjk,tjd->tkd", comb.astype(np.float64), X)
    return (mixed + post[:, :, None].astype(np.float64) * y[:, None, :]).astype(np.float32)


def hc_head_weights(mix: np.ndarray, scale: np.ndarray, base: np.ndarray, eps: float) -> np.ndarray:
    """Return the weights (T, C) that sum the streams before the output head: sigmoid(mix * scale + base) + eps."""
    return (_sigmoid(mix.astype(np.float64) * scale[0] + base) + eps).astype(np.float32)


def engram_gate(X: np.ndarray, joined: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Add to each stream of X (T, C, D) the value of ``joined`` (T, C*D + D: keys of the streams, value), times a gate.

    A gate is the sigmoid of the root of s, with the sign of s; s is the product of the stream and its key, both
    RMS-normed, weighted by ``weight`` (C, D) and divided by sqrt(D).
    """
    tokens, streams, dim = X.shape
    x, both = X.astype(np.float64), joined.astype(np.float64)
    key, value = both[:, : streams * dim].reshape(X.shape), both[:, None, streams * dim :]
    norms = np.sqrt(np.square(x).mean(axis=2) + eps) * np.sqrt(np.square(key).mean(axis=2) + eps)
    s = (x * weight * key).sum(axis=2) / norms / np.sqrt(dim)
    gate = _sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(s), 1e-6)), s))
    return (x + gate[..., None] * value).astype(np.float32)
