"""Faults of ``ds4ref.variants.LIBRARY`` made again in Hugging Face's code, under the same names.

Each was written from the one line that the library says about it, as a mistake in this other code base; whether both
mean the same is then a fact about the descriptions (test_bugs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ds4ref.variants import LIBRARY

from .surgery import (
    ATTENTION,
    CSA,
    EXPERTS,
    HASHED,
    HCA,
    HEAD,
    HIDDEN,
    INDEXER,
    LAYER,
    LEARNED,
    MIXING,
    MOE,
    NORM,
    PLAIN_NORM,
    SCORER,
    SHARED,
    Apply,
    Bug,
    attribute,
    both,
    configured,
    edit,
    forward,
    identity,
    layers,
    masked,
    modeling,
    modules,
    output,
    rotated,
    weights,
)

POOLS = (CSA, INDEXER, HCA)

# --- attention: which rows


def _cut(size: int) -> Apply:
    return masked(lambda mask, t, key: mask.masked_fill(key // size != t // size, HIDDEN))


def _threshold(position: str) -> Apply:
    return forward(HCA, INDEXER, to=[("(position_ids + 1)", f"({position})")])


# --- rope


def _no_yarn(rope: dict[str, Any]) -> None:
    theta, partial = (rope["compress"][key] for key in ("rope_theta", "partial_rotary_factor"))
    rope["compress"] = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial}


def _copy(to: str, source: str) -> Any:
    return lambda rope: rope.update({to: dict(rope[source])})


def _magnitude(rope: dict[str, Any]) -> None:
    """What transformers does when nobody forbids it."""
    del rope["compress"]["attention_factor"]


def row_position(late: str) -> Apply:
    old = "self.compress_rate + first_window_position"
    return forward(*POOLS, to=[(old, f"{old} + {late}")])


def _eps(eps: float) -> Apply:
    return both(attribute(NORM, "variance_epsilon", lambda _: eps), attribute(PLAIN_NORM, "eps", lambda _: eps))


# --- routers, experts


_ROUTED = "return routed"


_GATHER = "weights = scores.gather(1, indices)"
_SUM = "weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)"
_FIRST, _SECOND = "[..., self.head_dim :]", ":-1, :, : self.head_dim]"
BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"

_APPLY: dict[str, Apply] = {
    # which rows, sinks
    "window_short": configured(sliding_window=lambda n: n - 1),
    "self_missing": masked(lambda mask, t, key: mask.masked_fill(key == t, HIDDEN)),
    "chunk_64_window_cut": _cut(64),
    "no_sink": weights(lambda o: [a.sinks for a in layers("self_attn")(o)], lambda s: torch.full_like(s, -torch.inf)),
    # rope
    "no_inverse_rope": edit(ATTENTION, "forward", (BACK, "")),
    "rope_half_split": both(
        edit(modeling, "rotate_half", ("x[..., 0::2]", "x[..., : x.shape[-1] // 2]"),
             ("x[..., 1::2]", "x[..., x.shape[-1] // 2 :]"), ("torch.stack((-x2, x1), dim=-1).flatten(-2)",
             "torch.cat((-x2, x1), dim=-1)")),
        edit(modeling, "apply_rotary_pos_emb", ("cos.repeat_interleave(2, dim=-1)", "torch.cat((cos, cos), -1)"),
             ("sin.repeat_interleave(2, dim=-1)", "torch.cat((sin, sin), -1)")),
    ),
    "rope_first_dims": edit(
        modeling, "apply_rotary_pos_emb",
        ("nope, rope = x[..., :-rope_dim], x[..., -rope_dim:]", "rope, nope = x[..., :rope_dim], x[..., rope_dim:]"),
        ("[nope, rotated]", "[rotated, nope]"),
    ),
    "yarn_magnitude": rotated(_magnitude),
    "no_yarn": rotated(_no_yarn),
    "compressed_main_rope": rotated(_copy("compress", "main")),
    "row_rope_late": row_position("self.compress_rate"),
    # compressors
    "no_previous_window": forward(CSA, INDEXER, to=[("if n_windows > 1:", "if False:")]),
    "no_ape": forward(*POOLS, to=[(" + self.position_bias", "")]),
    "row_late": _threshold("position_ids"),
    "acausal_128": edit(HCA, "forward", ("block_bias = block_bias.masked_fill(", "_ = block_bias.masked_fill(")),
    "no_compressed_rows": edit(ATTENTION, "forward",
        ("block_bias.to(attention_mask.dtype)", "torch.full_like(block_bias, -torch.inf)")),
    "chunk_64_rows_late": _threshold("position_ids // 64 * 64"),
    # indexer
    "indexer_all": attribute(INDEXER, "index_topk", lambda k: 1 << 30),
    "indexer_recent": edit(INDEXER, "forward", ("self.scorer(q, compressed_kv, hidden_states)",
        "torch.arange(float(compressed_kv.shape[1])).expand(batch, seq_len, -1)")),
    "indexer_no_relu": edit(SCORER, "forward", ("F.relu(scores)", "scores")),
    "indexer_topk_short": attribute(INDEXER, "index_topk", lambda k: k - 1),
    # routers
    "router_no_scale": attribute(LEARNED, "routed_scaling_factor", lambda scale: 1.0),
    "router_softmax": edit(LEARNED, "forward", (_GATHER, "weights = logits.softmax(-1).gather(1, indices)")),
    "router_not_normalised": edit(LEARNED, "forward", (_SUM, "")),
    "router_no_bias": weights(
        lambda o: [m.e_score_correction_bias for m in modules(o, LEARNED)], torch.zeros_like),
    "hash_previous_token": edit(HASHED, "forward", ("indices = self.tid2eid[input_ids.reshape(-1)]",
        "before = torch.cat((input_ids.reshape(-1)[:1], input_ids.reshape(-1)[:-1]))\n"
        "    indices = self.tid2eid[before]")),
    # experts
    "no_clamp_routed": attribute(EXPERTS, "limit", lambda limit: math.inf),
    "no_clamp_shared": attribute(SHARED, "limit", lambda limit: math.inf),
    "gate_up_swapped": both(
        edit(EXPERTS, "_apply_gate", ("gate, up = gate_up", "up, gate = gate_up")),
        edit(SHARED, "forward", ("gate = self.gate_proj", "gate = self.up_PROJ"), ("up = self.up_proj",
             "up = self.gate_proj"), ("up_PROJ", "up_proj"))),
    "gelu": attribute((EXPERTS, SHARED), "act_fn", lambda silu: torch.nn.GELU("tanh")),
    "no_shared_expert": edit(MOE, "forward", ("routed + self.shared_experts(residual)", "routed")),
    "no_routed_experts": edit(MOE, "forward", (_ROUTED, "return torch.zeros_like(routed)")),
    "routed_late": edit(MOE, "forward", (_ROUTED, "return F.pad(routed[:, :-1], (0, 0, 1, 0))")),
    "experts_swapped": weights(
        lambda o: [tensor for m in modules(o, EXPERTS) for tensor in (m.gate_up_proj, m.down_proj)],
        lambda w: torch.cat((w[1:2], w[:1], w[2:]))),
    "expert_off_by_one": edit(MOE, "forward", ("self.experts(flat, indices,",
        "self.experts(flat, (indices + 1) % self.experts.num_experts,")),
    # output projection, norms
    "o_groups_interleaved": edit(ATTENTION, "forward", ("grouped = attn_output.reshape(",
        "attn_output = attn_output.unflatten(2, (-1, self.config.o_groups)).transpose(2, 3)\n"
        "    grouped = attn_output.reshape(")),
    "no_q_head_norm": identity(layers("self_attn.q_b_norm")),
    "no_kv_norm": identity(layers("self_attn.kv_norm")),
    "no_output_norm": identity(lambda o: [o.model.model.norm]),
    "ffn_norm_of_attn": edit(LAYER, "forward", ("self.post_attention_layernorm(", "self.input_layernorm(")),
    "rms_eps_1e5": _eps(1e-5),
    # streams
    "hc_comb_transposed": edit(LAYER, "forward", ("comb.to(dtype).transpose(-1, -2)", "comb.to(dtype)")),
    "hc_post_half": edit(MIXING, "forward", ("post = 2 * torch", "post = torch")),
    "hc_identity": edit(LAYER, "forward", ("torch.matmul(", "(")
        , ("comb.to(dtype).transpose(-1, -2), hidden_states", "hidden_states")),
    "hc_eps_0": both(attribute(MIXING, "hc_eps", lambda eps: 0.0), attribute(HEAD, "eps", lambda eps: 0.0)),
    "sinkhorn_1": attribute(MIXING, "hc_sinkhorn_iters", lambda n: 1),
    "sinkhorn_short": attribute(MIXING, "hc_sinkhorn_iters", lambda n: n - 1),
}  # fmt: skip


LIBRARY_BUGS = [Bug(name, LIBRARY[name].says, apply) for name, apply in _APPLY.items()]


SIZES: dict[str, tuple[Callable[[float], Apply], tuple[float, float]]] = {
    "rms_eps": (_eps, (1e-5, 1e-2)),
    "swiglu_limit": (lambda size: attribute((EXPERTS, SHARED), "limit", lambda _: size), (4, 30)),
    "shared_scale": (lambda size: output(layers("mlp.shared_experts"), lambda y: y * size), (0.5, 2)),
    "yarn_factor": (lambda size: rotated(lambda rope: rope["compress"].update(factor=size)), (2, 40)),
    "compressed_position": (lambda size: row_position(f"({int(size)})"), (-3, 2)),
}
"""Families of ``ds4ref.variants.families``: the constant with a value, and the smallest and largest value tried."""
