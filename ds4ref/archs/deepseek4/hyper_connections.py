"""Hyper-connections around a block: streams to one block input, block output to streams (model.md 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np


class Mixing(NamedTuple):
    """Results of ``pre`` that ``post`` needs: streams X (T, C, D), post (T, C), comb (T, C, C)."""

    X: np.ndarray
    post: np.ndarray
    comb: np.ndarray


def pre(c: Chunk, half: str, X: np.ndarray) -> tuple[np.ndarray, Mixing]:
    """Reduce streams X (T, C, D) to the block input before its norm (T, D); ``half`` is "attn" or "ffn"."""
    ops, s, fn = c.ops, c.shape, c.w.mixing(half)
    X = c.tap(f"hc_{half}_in", X)
    mix = c.tap(f"hc_{half}_pre_mixes", ops.hc_mix(X, fn.fn, s.rms_eps))
    weights, post_weights, comb = ops.hc_split(mix, fn.scale, fn.base, s.sinkhorn_iters, s.hc_eps)
    weights = c.tap(f"hc_{half}_pre_weights", weights)
    post_weights = c.tap(f"hc_{half}_pre_post_weights", post_weights)
    comb = c.tap(f"hc_{half}_pre_comb", comb)
    return c.tap(f"hc_{half}_pre", ops.hc_reduce(X, weights)), Mixing(X, post_weights, comb)


def post(c: Chunk, half: str, y: np.ndarray, mixing: Mixing) -> np.ndarray:
    """Mix block output y (T, D) back into streams (T, C, D)."""
    return c.tap(f"hc_{half}_post", c.ops.hc_expand(mixing.X, y, mixing.post, mixing.comb))
