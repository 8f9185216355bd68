"""Feed-forward half of a layer: the routed experts plus the shared expert (docs/explanation/model.md 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..experts import DOWN, GATE_UP
from . import hyper_connections
from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np

    from .weights import LayerWeights


def half_layer(c: Chunk, X: np.ndarray) -> np.ndarray:
    """Apply the feed-forward half of the current layer to the residual streams X (T, C, D); return the new streams."""
    ops = c.ops
    h, mixing = hyper_connections.pre(c, "ffn", X)
    x = c.tap("ffn_norm", ops.rms_norm(h, c.w.ffn_norm, c.shape.rms_eps))
    return hyper_connections.post(c, "ffn", feed_forward(c, x), mixing)


def feed_forward(c: Chunk, x: np.ndarray) -> np.ndarray:
    """Return the sum (T, D) of the chosen experts' and the shared expert's outputs for the FFN input x (T, D)."""
    ids, weights = _route(c, x)
    shared = _shared(c, x)  # before the routed experts, which may still be being read from disk
    return c.steer("ffn", c.tap("ffn_out", c.ops.add(_routed(c, x, ids, weights, shared), shared)))


def hashed_experts(c: Chunk, layer: int, w: LayerWeights) -> np.ndarray | None:
    """Return the expert ids (T, K) of a hash-routed layer, looked up by token id; None for other layers.

    These ids are known before the first layer runs, so the first call, made then, also begins to read the experts.
    """
    if w.ffn_gate_tid2eid is not None and layer not in c.given:
        c.given[layer] = c.ops.take_rows(w.ffn_gate_tid2eid, c.ids)
        c.experts.ahead(c.ops, layer, c.given[layer])
    return c.given.get(layer)


def _route(c: Chunk, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expert ids (T, K) that are chosen for the FFN input x (T, D), and their weights (T, K)."""
    ops, s, w = c.ops, c.shape, c.w
    logits = ops.linear(x, w.ffn_gate_inp, "float")
    if s.gate_temp != 1:
        logits = ops.scale(logits, 1 / s.gate_temp)
    logits = c.tap("ffn_moe_logits", logits)
    hashed = hashed_experts(c, c.layer, w)
    bias = w.exp_probs_b if hashed is None else None
    probs, ids, weights = ops.route(logits, bias, hashed, s.n_used, s.route_scale, c.numerics.route_floor)
    c.tap("ffn_moe_probs", probs)
    ids = c.tap("ffn_moe_topk", ids)
    c.experts.chosen(ops, c.layer, ids, known=hashed is not None)
    return ids, c.tap("ffn_moe_weights_scaled", weights)


def _routed(c: Chunk, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Return the sum of the outputs of the chosen experts (T, D) for the FFN input x (T, D); as in ds4, routing weights
    are applied before the down projection.

    shared: output of the shared expert; once it is computed, wait for matrices that are still being read from disk.
    """
    ops, s, w = c.ops, c.shape, c.w
    c.experts.read(ops, c.layer, ids, GATE_UP, after=shared)
    act = c.act(w.ffn_gate_exps)
    gate = c.tap("ffn_moe_gate", ops.expert_linear(x, ids, w.ffn_gate_exps, act))
    up = c.tap("ffn_moe_up", ops.expert_linear(x, ids, w.ffn_up_exps, act))
    mid = c.tap("ffn_moe_weighted_swiglu", ops.swiglu(gate, up, s.swiglu_limit[c.layer], weights))
    c.experts.read(ops, c.layer, ids, DOWN, after=mid)
    return c.tap("ffn_moe_out", ops.expert_sum(mid, ids, w.ffn_down_exps, c.act(w.ffn_down_exps)))


def _shared(c: Chunk, x: np.ndarray) -> np.ndarray:
    """Return the output (T, D) of the shared expert, which is computed like a routed one with weight 1."""
    ops, w = c.ops, c.w
    act = c.act(w.ffn_gate_shexp)
    gate = c.tap("ffn_shexp_gate", ops.linear(x, w.ffn_gate_shexp, act))
    up = c.tap("ffn_shexp_up", ops.linear(x, w.ffn_up_shexp, act))
    mid = c.tap("ffn_shexp_mid", ops.swiglu(gate, up, c.shape.swiglu_limit[c.layer], None))
    return c.tap("ffn_shexp", ops.linear(mid, w.ffn_down_shexp, c.act(w.ffn_down_shexp)))
