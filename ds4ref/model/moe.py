"""FFN half of a layer: routed experts plus the shared one (engine.md 3.6)."""

from __future__ import annotations

import numpy as np

from ..weights.tensors import LayerWeights
from . import hyper_connections
from .chunk import Chunk


def half_layer(chunk: Chunk, layer: int, w: LayerWeights, X: np.ndarray) -> np.ndarray:
    """Streams X (T, C, D) in and out."""
    h, mixing = hyper_connections.pre(chunk, "ffn", layer, X, w.hc_ffn_fn, w.hc_ffn_scale, w.hc_ffn_base)
    x = chunk.tap("ffn_norm", layer, chunk.ops.rms_norm(h, w.ffn_norm, chunk.shape.rms_eps))
    y = chunk.tap("ffn_out", layer, _routed(chunk, layer, w, x) + _shared(chunk, layer, w, x))
    return hyper_connections.post(chunk, "ffn", layer, y, mixing)


def _routed(chunk: Chunk, layer: int, w: LayerWeights, x: np.ndarray) -> np.ndarray:
    """The chosen experts' sum (T, D). Routing weights go in before the down projection, as ds4 does."""
    ops, shape = chunk.ops, chunk.shape
    logits = chunk.tap("ffn_moe_logits", layer, ops.linear(x, w.ffn_gate_inp, "float"))
    table = w.ffn_gate_tid2eid
    hash_ids = None if table is None else table[chunk.ids]
    bias = None if table is not None else w.exp_probs_b
    routing = ops.route(logits, bias, hash_ids, shape.n_used, shape.route_scale, chunk.numerics.route_floor)
    chunk.tap("ffn_moe_probs", layer, routing[0])
    ids = chunk.tap("ffn_moe_topk", layer, routing[1])
    weights = chunk.tap("ffn_moe_weights_scaled", layer, routing[2])
    chunk.experts.used_by_chunk(layer, ids)
    act = chunk.act(w.ffn_gate_exps)
    gate = chunk.tap("ffn_moe_gate", layer, ops.expert_linear(x, ids, w.ffn_gate_exps, act))
    up = chunk.tap("ffn_moe_up", layer, ops.expert_linear(x, ids, w.ffn_up_exps, act))
    mid = ops.swiglu(gate, up, shape.swiglu_limit[layer], weights)
    mid = chunk.tap("ffn_moe_weighted_swiglu", layer, mid)
    out = ops.expert_sum(mid, ids, w.ffn_down_exps, chunk.act(w.ffn_down_exps))
    return chunk.tap("ffn_moe_out", layer, out)


def _shared(chunk: Chunk, layer: int, w: LayerWeights, x: np.ndarray) -> np.ndarray:
    """The expert every token passes through (T, D): same nonlinearity, weight 1."""
    ops = chunk.ops
    act = chunk.act(w.ffn_gate_shexp)
    gate = chunk.tap("ffn_shexp_gate", layer, ops.linear(x, w.ffn_gate_shexp, act))
    up = chunk.tap("ffn_shexp_up", layer, ops.linear(x, w.ffn_up_shexp, act))
    mid = chunk.tap("ffn_shexp_mid", layer, ops.swiglu(gate, up, chunk.shape.swiglu_limit[layer], None))
    return chunk.tap("ffn_shexp", layer, ops.linear(mid, w.ffn_down_shexp, chunk.act(w.ffn_down_shexp)))
