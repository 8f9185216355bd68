"""Mistakes in Hugging Face's code that ``ds4ref.variants.LIBRARY`` does not have, from hardly visible to gross.

A diagnosis can name none of them. What it must never do is call such an engine right without saying that it could not
have seen the mistake. Keep them out of the library; a fault that goes in there leaves this list.

OUTSIDE_BUGS  in every pass, but for a number that is wrong (FAMILIES)
DECODE_BUGS   only while tokens are decoded one by one after a prefill of PREFILL tokens: the first rows are clean
FAMILIES          a number that is wrong, in several sizes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .bugs_library import row_position
from .hf import Oracle
from .surgery import (
    ATTENTION,
    CSA,
    EXPERTS,
    HASHED,
    HCA,
    INDEXER,
    LAYER,
    LEARNED,
    MIXING,
    NORM,
    PLAIN_NORM,
    SCORER,
    SHARED,
    Apply,
    Bug,
    attribute,
    both,
    configured,
    each,
    edit,
    forward,
    layers,
    modeling,
    modules,
    output,
    rope_changed,
    weights,
)

POOLS = (CSA, INDEXER, HCA)
Tensor = torch.Tensor


def _scaled(factor: float) -> Callable[[Any], Any]:
    return lambda value: value * factor


def _layer(oracle: Oracle, index: int) -> Any:
    return oracle.model.model.layers[index]


def _sinks(change: Callable[[Tensor], Tensor]) -> Apply:
    return weights(lambda oracle: [a.sinks for a in layers("self_attn")(oracle)], change)


def _norm_eps(eps: float) -> Apply:
    return both(attribute(NORM, "variance_epsilon", lambda _: eps), attribute(PLAIN_NORM, "eps", lambda _: eps))


def _angles(dtype: torch.dtype) -> Apply:
    """Frequencies kept in a short type, as a model cast as a whole keeps them."""
    rounded = lambda table: table.to(dtype).float()  # noqa: E731
    rope = modeling.DeepseekV4RotaryEmbedding
    return both(*(_buffer(rope, f"{kind}_inv_freq", rounded) for kind in ("main", "compress")))


def _buffer(kinds: Any, name: str, change: Callable[[Tensor], Tensor]) -> Apply:
    return weights(lambda oracle: [getattr(module, name) for module in modules(oracle, kinds)], change)


def _first(x: Tensor, value: float) -> Tensor:
    """Entry 0 of the first axis times ``value``."""
    x = x.clone()
    x[0] *= value
    return x


_TURN = "cos * cos[:, 1:2] {0} sin * sin[:, 1:2], sin * cos[:, 1:2] {1} cos * sin[:, 1:2]"
_BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"
_SCORES = "scores = self.score_fn(logits)"
_PROBS = "scores = probs[..., :-1]"
_COMB = "comb.to(dtype).transpose(-1, -2)"
_ROUTED = (LEARNED, HASHED)

_LIST: list[tuple[str, str, Apply]] = [
    ("logits_1.02", "logits x 1.02", output(lambda o: [o.model.lm_head], _scaled(1.02))),
    ("hc_scale_half", "hyper-connections: scales halved",
     weights(lambda o: [m.scale for m in modules(o, MIXING)], _scaled(0.5))),
    ("hash_by_score", "hash layers: experts chosen by score", edit(HASHED, "forward",
     ("indices = self.tid2eid[input_ids.reshape(-1)].long()", "indices = scores.topk(self.top_k, dim=-1).indices"))),
    ("indexer_head_missing", "indexer: first head left out",
     edit(SCORER, "forward", (".sum(dim=2)", "[:, :, 1:].sum(dim=2)"))),
    # attention
    ("sink_next_head", "every head takes the sink of the next", _sinks(lambda sinks: sinks.roll(-1))),
    ("sink_missing_layer_1", "no attention sink in the second layer",
     weights(lambda o: [_layer(o, 1).self_attn.sinks], lambda sinks: torch.full_like(sinks, -torch.inf))),
    ("probs_bf16", "attention probabilities in bfloat16", edit(modeling, "eager_attention_forward",
     (_PROBS, "scores = probs[..., :-1].bfloat16().float()"))),
    ("query_position_late", "queries rotated at the next position", edit(ATTENTION, "forward",
     ("q = apply_rotary_pos_emb(q, cos, sin)", f"q = apply_rotary_pos_emb(q, {_TURN.format('-', '+')})"))),
    ("angles_bf16", "rope frequencies in bfloat16", _angles(torch.bfloat16)),
    ("head_norm_mean", "query head norm subtracts the mean",
     each(layers("self_attn.q_b_norm"), "forward", lambda norm: lambda x: norm(x - x.mean(-1, keepdim=True)))),
    # compressors
    ("ape_phase", "compressor position bias off by one phase", forward(*POOLS, to=[
        ("self.position_bias", "self.position_bias.roll(1, 0)")])),
    ("rope_layer_2_main", "the first compressed layer's queries and raw rows take the main rope",
     each(lambda o: [_layer(o, 2).self_attn], "rope_layer_type", lambda _: "main")),
    # experts and routers
    ("router_no_sqrt", "router: softplus without the square root",
     forward(*_ROUTED, to=[(_SCORES, "scores = F.softplus(logits)")])),
    ("weights_on_input", "routing weights put on the experts' input", edit(EXPERTS, "forward",
     ("hidden_states[token_idx]", "hidden_states[token_idx] * top_k_weights[token_idx, top_k_pos, None]"),
     ("self.down_proj[expert_idx]) * top_k_weights[token_idx, top_k_pos, None]", "self.down_proj[expert_idx])"))),
    ("expert_0_layer_4", "expert 0 of the fifth layer x 1.1",
     weights(lambda o: [_layer(o, 4).mlp.experts.down_proj[0]], _scaled(1.1))),
    # streams, layers, ends
    ("comb_transposed_ffn", "mixing matrix not transposed after the ffn", edit(LAYER, "forward",
     (f"mlp_output.unsqueeze(-2) + torch.matmul(\n        {_COMB}",
      "mlp_output.unsqueeze(-2) + torch.matmul(\n        comb.to(dtype)"))),
    ("ffn_5_skipped", "the sixth layer without its experts", output(lambda o: [_layer(o, 5).mlp], torch.zeros_like)),
    ("norm_channel_lost", "one channel of the block input norms lost",
     weights(lambda o: [m.weight for m in layers("input_layernorm")(o)], lambda w: _first(w, 0.0))),
]  # fmt: skip

OUTSIDE_BUGS = [Bug(name, says, apply) for name, says, apply in _LIST]

# --- in decode alone

PREFILL = 100
"""Tokens of the first call; all later calls have one."""

_ROW_CACHE, _OVERLAP = modeling.DeepseekV4HCACache, modeling.DeepseekV4CSACache
_START = "first_window_position = self.entry_count[name] * self.compress_rate"

_DECODE = [
    ("decode_no_ape", "compressor position bias missing in decode",
     forward(*POOLS, to=[("self.position_bias", "self.position_bias * (first_window_position == 0)")])),
    ("decode_no_previous_window", "ratio 4: previous window forgotten between calls",
     forward(CSA, INDEXER, to=[("if prior_kv is not None:", "if False:")])),
    ("decode_row_rope_late", "compressed rows of decode rotated one window late", edit(
        _ROW_CACHE, "store_compression_weights", (_START, f"{_START}\n"
        "    first_window_position += self.compress_rate * (first_window_position > 0)"))),
    ("decode_indexer_oldest", "indexer takes the oldest rows in decode", edit(INDEXER, "forward", (
        "top_k_indices = index_scores.topk(top_k, dim=-1).indices",
        "index_scores = index_scores if seq_len > 1 else -entry_indices.float().expand_as(index_scores)\n"
        "        top_k_indices = index_scores.topk(top_k, dim=-1).indices"))),
    ("decode_no_inverse_rope", "attention output not rotated back in decode",
     edit(ATTENTION, "forward", (_BACK, f"if input_shape[1] > 1:\n        {_BACK}"))),
    ("decode_no_sink", "no attention sink in decode", edit(modeling, "eager_attention_forward", (
        "combined_logits = torch.cat(", "if query.shape[2] == 1:\n        sinks = torch.full_like(sinks, -1e30)\n"
        "    combined_logits = torch.cat("))),
    ("decode_no_clamp", "routed experts: no clamp in decode", both(
        edit(EXPERTS, "_apply_gate", ("self.limit", "self.limit_")),
        edit(EXPERTS, "forward", ("final = torch",
             "self.limit_ = self.limit if len(hidden_states) > 1 else 1e30\n    final = torch")))),
]  # fmt: skip

DECODE_BUGS = [Bug(name, says, apply) for name, says, apply in _DECODE]

# --- sizes


@dataclass(frozen=True)
class Family:
    """One number that an engine can have wrong. ``make(size)`` is the mistake; ``unit`` says what the size means."""

    name: str
    says: str
    unit: str
    sizes: tuple[float, ...]
    make: Callable[[float], Apply]

    def bugs(self) -> list[Bug]:
        """One for each size, named FAMILY=SIZE."""
        return [Bug(f"{self.name}={size:g}", f"{self.says}: {size:g}", self.make(size)) for size in self.sizes]


def _absolute(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: type(right)(size))


def _factor(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: right * size)


def _more(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: right + int(size))


def _rope(kind: str, key: str) -> Callable[[float], Apply]:
    return lambda size: rope_changed(kind, **{key: lambda _: size})


def _window(size: float) -> Apply:
    return configured(sliding_window=lambda right: right + int(size))


FAMILIES = [
    Family("sinkhorn_iters", "Sinkhorn rounds", "rounds", (2, 3, 4, 5, 7, 10, 15, 19),
           _absolute(MIXING, "hc_sinkhorn_iters")),
    Family("route_scale", "route scale of learned and hash layers", "factor",
           (0.5, 0.8, 0.9, 0.95, 0.98, 1.03, 1.1, 1.4), _factor((LEARNED, HASHED), "routed_scaling_factor")),
    Family("window", "window", "rows more", (-8, -3, -2, 2, 3, 5, 16), _window),
    Family("indexer_topk", "indexer top-k", "rows more", (-4, -2, 1, 2, 4), _more(INDEXER, "index_topk")),
    Family("rms_eps", "RMS norm eps", "value", (1e-5, 3e-5, 1e-4, 1e-3, 1e-2), _norm_eps),
    Family("attn_scale", "attention scale", "factor", (0.7, 0.9, 0.97, 0.99, 1.02, 1.1, 1.5),
           _factor(ATTENTION, "scaling")),
    Family("swiglu_limit", "clamp", "value", (4, 6, 8, 9.5, 10.5, 12, 15, 30),
           _absolute((EXPERTS, SHARED), "limit")),
    Family("shared_scale", "shared expert", "factor", (0.5, 0.9, 0.98, 1.02, 1.2, 2),
           lambda size: output(layers("mlp.shared_experts"), lambda y: y * size)),
    Family("yarn_factor", "YaRN factor", "value", (2, 4, 8, 32, 40), _rope("compress", "factor")),
    Family("compressed_position", "position of compressed rows", "positions more", (-3, -1, 1, 2),
           lambda size: row_position(f"({int(size)})")),
]  # fmt: skip
