"""Hyper-connections (model.md 3): the residual is C parallel streams; each attention or FFN block reads one mixture of
them, and its output is mixed back into all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..inputs import of_sequence
from .chunk import Chunk


class Mixing(NamedTuple):
    """Results of ``pre`` that ``post`` needs.

    X     residual streams before the block (T, C, D)
    post  factor of the block's output for each stream (T, C)
    comb  matrix that mixes the streams (T, C, C)
    """

    X: np.ndarray
    post: np.ndarray
    comb: np.ndarray


def pre(c: Chunk, half: str, X: np.ndarray) -> tuple[np.ndarray, Mixing]:
    """Return the input of a block before its norm (T, D), a weighted sum of the streams X (T, C, D), and what ``post``
    needs after the block; ``half``: "attn" or "ffn"."""
    weights, mixing = coefficients(c, half, X)
    return c.tap(f"hc_{half}_pre", c.ops.hc_reduce(mixing.X, weights)), mixing


def coefficients(c: Chunk, half: str, X: np.ndarray) -> tuple[np.ndarray, Mixing]:
    """Return the weights (T, C) of the streams X (T, C, D) as a block's input, and what ``post`` needs after the
    block."""
    ops, s, fn = c.ops, c.shape, c.w.mixing(half)
    X = c.tap(f"hc_{half}_in", X)
    mix = c.tap(f"hc_{half}_pre_mixes", ops.hc_mix(X, fn.fn, s.rms_eps))
    weights, post_weights, comb = ops.hc_split(mix, fn.scale, fn.base, s.sinkhorn_iters, s.hc_eps)
    weights = c.tap(f"hc_{half}_pre_weights", weights)
    post_weights = c.tap(f"hc_{half}_pre_post_weights", post_weights)
    comb = c.tap(f"hc_{half}_pre_comb", comb)
    return weights, Mixing(X, post_weights, comb)


def post(c: Chunk, half: str, y: np.ndarray, mixing: Mixing) -> np.ndarray:
    """Return the new streams (T, C, D): the old ones mixed, plus the block's output y (T, D) times each stream's
    factor."""
    return c.tap(f"hc_{half}_post", c.ops.hc_expand(mixing.X, y, mixing.post, mixing.comb))


def keep_mean(c: Chunk, X: np.ndarray) -> None:
    """Store the mean over the streams X (T, C, D) after the current layer, if a drafter reads this layer."""
    parts = c.sequences()
    if parts[0][0].cache.means is None:
        return
    even = c.input("even", lambda c: (np.full((len(c.ids), c.shape.hc), 1 / c.shape.hc, np.float32),))[0]
    means = c.ops.hc_reduce(X, even)
    for part, places in parts:
        c.ops.store_rows(of_sequence(means, places), part.cache.means, part.at())
