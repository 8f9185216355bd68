"""Hyper-connections around a block: streams in, one input out; one output in, streams out (engine.md 3.1, 3.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.formats.matrix import Matrix

from .chunk import Chunk


class Mixing(NamedTuple):
    """What the "post" step needs of the "pre" step: streams X (T, C, D), post (T, C), comb (T, C, C)."""

    X: np.ndarray
    post: np.ndarray
    comb: np.ndarray


def pre(
    chunk: Chunk, half: str, layer: int, X: np.ndarray, fn: Matrix, scale: np.ndarray, base: np.ndarray
) -> tuple[np.ndarray, Mixing]:
    """Streams X (T, C, D) -> block input before its norm (T, D), and what ``post`` needs. ``half`` is attn or ffn."""
    ops, shape = chunk.ops, chunk.shape
    X = chunk.tap(f"hc_{half}_in", layer, X)
    mix = chunk.tap(f"hc_{half}_pre_mixes", layer, ops.hc_mix(X, fn, shape.rms_eps))
    weights, post_weights, comb = ops.hc_split(mix, scale, base, shape.sinkhorn_iters, shape.hc_eps)
    weights = chunk.tap(f"hc_{half}_pre_weights", layer, weights)
    post_weights = chunk.tap(f"hc_{half}_pre_post_weights", layer, post_weights)
    comb = chunk.tap(f"hc_{half}_pre_comb", layer, comb)
    h = chunk.tap(f"hc_{half}_pre", layer, ops.hc_reduce(X, weights))
    return h, Mixing(X, post_weights, comb)


def post(chunk: Chunk, half: str, layer: int, y: np.ndarray, mixing: Mixing) -> np.ndarray:
    """Block output y (T, D) -> streams (T, C, D)."""
    X = chunk.ops.hc_expand(mixing.X, y, mixing.post, mixing.comb)
    return chunk.tap(f"hc_{half}_post", layer, X)
