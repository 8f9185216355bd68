"""Routed experts of a decoder's feed-forward: the K experts with the best router logits, weighted by the softmax of
these logits.

The softmax of the K best logits alone gives the same weights as the formula of Qwen3 and Mixtral: the softmax of all
logits, of which the K best are taken and divided by their sum. Formulas: Shazeer et al. 2017; Jiang et al. 2024
(Mixtral).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..experts import DOWN, GATE_UP

if TYPE_CHECKING:
    from .chunk import Chunk
    from .weights import LayerWeights


def routed(c: Chunk, w: LayerWeights, h: np.ndarray) -> np.ndarray:
    """Return the sum over each token's experts of down(weight * silu(gate(h)) * up(h)), (T, D)."""
    ops = c.ops
    assert w.ffn_gate_exps is not None and w.ffn_up_exps is not None and w.ffn_down_exps is not None
    ids, weights = _route(c, w, h)
    c.experts.read(ops, c.layer, ids, GATE_UP, after=weights)
    gate = c.tap("ffn_moe_gate", ops.expert_linear(h, ids, w.ffn_gate_exps, c.act(w.ffn_gate_exps)))
    up = c.tap("ffn_moe_up", ops.expert_linear(h, ids, w.ffn_up_exps, c.act(w.ffn_up_exps)))
    mid = c.tap("ffn_moe_weighted_swiglu", ops.swiglu(gate, up, math.inf, weights))
    c.experts.read(ops, c.layer, ids, DOWN, after=mid)
    return ops.expert_sum(mid, ids, w.ffn_down_exps, c.act(w.ffn_down_exps))


def _route(c: Chunk, w: LayerWeights, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expert ids (T, K) chosen for h (T, D), best first, equal ones by lower id, and their weights
    (T, K)."""
    ops = c.ops
    logits = c.tap("ffn_moe_logits", ops.linear(h, w.ffn_gate_inp, "float"))
    best, ids = ops.top(logits, c.shape.n_used)
    ids = c.tap("ffn_moe_topk", ids)
    c.experts.chosen(ops, c.layer, ids)
    return ids, c.tap("ffn_moe_weights", _softmax(c, best))


def _softmax(c: Chunk, x: np.ndarray) -> np.ndarray:
    """Return the softmax of each row of x (T, K), by the compressors' op: it averages one-hot vectors, weighted by the
    softmax of the row."""
    tokens, count = x.shape
    scores = c.ops.streams(x.reshape(tokens * count, 1), count).reshape(tokens, count, count)
    (ones,) = c.input("one-hot", lambda c: (np.tile(np.eye(count, dtype=np.float32), (len(c.positions), 1, 1)),))
    return c.ops.pool(ones, scores)
