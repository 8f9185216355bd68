"""Faults of ``ds4ref.variants.LIBRARY`` made again in Hugging Face's code, under the same names.

Each was written from the one line that the library says about it, as a mistake in this other code base; whether both
mean the same is then a fact about the descriptions (test_patients).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ds4ref.variants import LIBRARY

from . import hf_rounded
from .hf import Oracle
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
    Patient,
    attribute,
    both,
    configured,
    each,
    edit,
    forward,
    identity,
    layers,
    masked,
    modeling,
    modules,
    rotated,
    weights,
)

POOLS = (CSA, INDEXER, HCA)

# --- attention: which rows


def _ring(mask: torch.Tensor, t: torch.Tensor, key: torch.Tensor, oracle: Oracle) -> torch.Tensor:
    """A full ring's oldest slot already holds the newest row, which is then there twice."""
    oldest = t - oracle.config.sliding_window + 1
    full = oldest >= 0
    mask = mask.masked_fill(full & (key == oldest), HIDDEN)
    return mask + math.log(2) * (full & (key == t))


def _cut(size: int) -> Apply:
    return masked(lambda mask, t, key, _: mask.masked_fill(key // size != t // size, HIDDEN))


def _threshold(position: str) -> Apply:
    return forward(HCA, INDEXER, to=[("(position_ids + 1)", f"({position})")])


def _pairs_lost(size: int) -> Apply:
    """What a compressor keeps of tokens before a multiple of ``size`` is gone when a window closes behind it."""
    overlapping = forward(
        CSA,
        INDEXER,
        to=[
            (
                "compressed = self.kv_norm(",
                f"slot = torch.arange(n_windows)[:, None] * ratio + torch.arange(-ratio, ratio)\n"
                f"        last = (torch.arange(n_windows)[:, None] + 1) * ratio - 1\n"
                f"        new_gate[:, slot < last // {size} * {size}] = -1e30\n"
                f"        compressed = self.kv_norm(",
            )
        ],
    )
    return both(overlapping, _long_lost(size))


def _long_lost(size: int) -> Apply:
    def projected(plain: Any) -> Any:
        def gate(x: torch.Tensor) -> torch.Tensor:
            out, at = plain(x), torch.arange(x.shape[1])
            last = (at // 128 + 1) * 128 - 1
            return out.masked_fill((at < last // size * size)[None, :, None], -1e30)

        return gate

    def choose(oracle: Oracle) -> list[Any]:
        return [module.gate_proj for module in modules(oracle, HCA)]

    return each(choose, "forward", projected)


def _late_key(by: int) -> Apply:
    """Keys' tables turned on by ``by`` positions: angles add up."""
    turned = (
        f"kv = apply_rotary_pos_emb(kv, cos * cos[:, {by} : {by + 1}] - sin * sin[:, {by} : {by + 1}], "
        f"sin * cos[:, {by} : {by + 1}] + cos * sin[:, {by} : {by + 1}])"
    )
    return edit(ATTENTION, "forward", ("kv = apply_rotary_pos_emb(kv, cos, sin)", turned))


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


# --- norms, streams


def _norms_of(choose: Callable[[Oracle], list[torch.Tensor]]) -> Apply:
    """The norms of these weights, in the order of the layers, take those of the layer before."""

    def apply(oracle: Oracle) -> Any:
        plain = [weight.clone() for weight in choose(oracle)]
        late = iter([plain[0], *plain])
        return weights(choose, lambda _: next(late))(oracle)

    return apply


def _compressed_norms(oracle: Oracle) -> Any:
    raw = iter([a.kv_norm.weight.clone() for a in layers("self_attn")(oracle) if a.compressor is not None])
    chosen = [norm.weight for norm in layers("self_attn.compressor.kv_norm")(oracle)]
    return weights(lambda _: chosen, lambda _: next(raw))(oracle)


def _mixing_late(part: int, by: int) -> Apply:
    """Of what a mixing module returns (post, comb, collapsed), one part is from the module ``by`` before it."""

    def apply(oracle: Oracle) -> Any:
        turns, found = itertools.count(), {}

        def change(plain: Any) -> Any:
            number = next(turns)

            def mixing(streams: torch.Tensor) -> tuple[torch.Tensor, ...]:
                parts = list(plain(streams))
                found[number] = parts[part]
                parts[part] = found.get(number - by, parts[part])
                return tuple(parts)

            return mixing

        return each(lambda o: modules(o, MIXING), "forward", change)(oracle)

    return apply


# --- states of compressors


def _late_scores(compressor: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Gate and position bias of the token before; the first token finds nothing."""
    gate = compressor.gate_proj(hidden)
    at = torch.arange(gate.shape[1]) % compressor.compress_rate
    return torch.cat((torch.full_like(gate[:, :1], -torch.inf), (gate + compressor.position_bias[at])[:, :-1]), 1)


_STATE_LATE = [
    ("kv = self.kv_proj(hidden_states)", "kv = F.pad(self.kv_proj(hidden_states)[:, :-1], (0, 0, 1, 0))"),
    ("gate = self.gate_proj(hidden_states)", "gate = late_scores(self, hidden_states)"),
    (" + self.position_bias", ""),
]


def _shifted(what: str, empty: str) -> tuple[str, str]:
    """The first halves of what goes into the next window, a token late."""
    halves = f"chunk_{what}[..., : self.head_dim].flatten(1, 2)[:, :-1]"
    padded = f"F.pad({halves}, (0, 0, 1, 0), value={empty}).view(batch, n_windows, ratio, -1)"
    return f"chunk_{what}[:, :-1, :, : self.head_dim]", f"{padded}[:, :-1]"


# --- routers, experts


def _tail(term: str, size: int) -> Apply:
    """One of the two outputs of the FFN is lost for the last token of each chunk."""
    kept = f"(torch.arange(seq_len) % {size} != {size - 1})[None, :, None]"
    return edit(MOE, "forward", (f"{term}", f"{term} * {kept}"))


_ROUTED, _SHARED = "return routed", "self.shared_experts(residual)"


def _late_hidden(slots: Callable[[int], int]) -> Apply:
    """Hidden vectors lie in one scratch, token by token, in the order of the experts' scores. Each down projection
    reads what is ``slots``(experts of a token) places before its own; the first ones read zeros."""

    def late(experts: Any, x: torch.Tensor, chosen: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scratch = [
            experts._apply_gate(experts.gate_up_proj[e] @ token) * w
            for token, ids, ws in zip(x, chosen, weight, strict=True)
            for e, w in zip(ids, ws, strict=True)
        ]
        used = chosen.shape[1]
        by = slots(used)
        read = [torch.zeros_like(scratch[0])] * by + scratch[:-by]
        down = [experts.down_proj[e] @ hidden for e, hidden in zip(chosen.flatten(), read, strict=True)]
        return torch.stack(down).unflatten(0, (-1, used)).sum(1)

    begin = "final = torch.zeros_like(hidden_states)"
    return both(
        edit(LEARNED, "forward", ("sorted=False", "sorted=True")),
        edit(EXPERTS, "forward", (begin, f"return late(self, hidden_states, top_k_index, top_k_weights)\n    {begin}"),
             given={"late": late}),
    )  # fmt: skip


_GATHER = "weights = scores.gather(1, indices)"
_SUM = "weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)"
_FIRST, _SECOND = "[..., self.head_dim :]", ":-1, :, : self.head_dim]"
_FIRST_TWO = "weights = torch.cat((weights[:, 1:2], weights[:, :1], weights[:, 2:]), 1)\n    return logits"
BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"

_APPLY: dict[str, Apply] = {
    # which rows, sinks
    "window_short": configured(sliding_window=lambda n: n - 1),
    "window_long": configured(sliding_window=lambda n: n + 1),
    "self_missing": masked(lambda mask, t, key, _: mask.masked_fill(key == t, HIDDEN)),
    "ring_wrap": masked(_ring),
    "chunk_32_window_cut": _cut(32),
    "chunk_64_window_cut": _cut(64),
    "chunk_128_window_cut": _cut(128),
    "no_sink": weights(lambda o: [a.sinks for a in layers("self_attn")(o)], lambda s: torch.full_like(s, -torch.inf)),
    "sink_zero": weights(lambda o: [a.sinks for a in layers("self_attn")(o)], torch.zeros_like),
    # rope
    "no_inverse_rope": edit(ATTENTION, "forward", (BACK, "")),
    "inverse_main_rope": edit(
        ATTENTION, "forward", (BACK, f"cos, sin = position_embeddings['main']\n    {BACK}")),
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
    "plain_compressed_rope": rotated(_copy("main", "compress")),
    "row_rope_end": row_position("self.compress_rate - 1"),
    "row_rope_late": row_position("self.compress_rate"),
    "key_position_late": _late_key(1),
    # compressors
    "no_previous_window": forward(CSA, INDEXER, to=[("if n_windows > 1:", "if False:")]),
    "halves_swapped": forward(CSA, INDEXER, to=[
        (_FIRST, "[..., : self.head_dim ]"), (_SECOND, ":-1, :, self.head_dim :]")]),
    "first_window_zero": forward(CSA, INDEXER, to=[('self.head_dim), float("-inf"))', "self.head_dim), 0.0)")]),
    "no_ape": forward(*POOLS, to=[(" + self.position_bias", "")]),
    "row_late": _threshold("position_ids"),
    "row_early": _threshold("position_ids + 2"),
    "acausal_128": edit(HCA, "forward", ("block_bias = block_bias.masked_fill(", "_ = block_bias.masked_fill(")),
    "no_compressed_rows": edit(ATTENTION, "forward",
        ("block_bias.to(attention_mask.dtype)", "torch.full_like(block_bias, -torch.inf)")),
    **{f"chunk_{n}_rows_late": _threshold(f"position_ids // {n} * {n}") for n in (32, 64, 128)},
    **{f"chunk_{n}_state_lost": _pairs_lost(n) for n in (32, 64, 128)},
    "state_late": both(*(edit(pool, "forward", *_STATE_LATE, given={"late_scores": _late_scores}) for pool in POOLS)),
    "previous_window_late": forward(CSA, INDEXER, to=[_shifted("kv", "0.0"), _shifted("gate", "float('-inf')")]),
    # indexer
    "indexer_all": attribute(INDEXER, "index_topk", lambda k: 1 << 30),
    "indexer_recent": edit(INDEXER, "forward", ("self.scorer(q, compressed_kv, hidden_states)",
        "torch.arange(float(compressed_kv.shape[1])).expand(batch, seq_len, -1)")),
    "indexer_no_relu": edit(SCORER, "forward", ("F.relu(scores)", "scores")),
    "indexer_no_weights": edit(SCORER, "forward", ("(scores * weights.unsqueeze(-1))", "scores")),
    "indexer_topk_short": attribute(INDEXER, "index_topk", lambda k: k - 1),
    "indexer_no_rope": edit(INDEXER, "forward",
        ("unsqueeze(1), cos, sin)", "unsqueeze(1), torch.ones_like(cos), torch.zeros_like(sin))"),
        ("(q, cos_q, sin_q)", "(q, torch.ones_like(cos_q), torch.zeros_like(sin_q))")),
    "indexer_positive_only": edit(INDEXER, "forward", ("invalid = top_k_indices >= causal_threshold.unsqueeze(-1)",
        "invalid = (top_k_indices >= causal_threshold.unsqueeze(-1)) | "
        "((index_scores.gather(-1, top_k_indices) <= 0) & (causal_threshold > self.index_topk).unsqueeze(-1))")),
    # routers
    "router_no_scale": attribute(LEARNED, "routed_scaling_factor", lambda scale: 1.0),
    "router_softmax": edit(LEARNED, "forward", (_GATHER, "weights = logits.softmax(-1).gather(1, indices)")),
    "router_not_normalised": edit(LEARNED, "forward", (_SUM, "")),
    "router_biased_weights": edit(LEARNED, "forward",
        (_GATHER, "weights = (scores + self.e_score_correction_bias).gather(1, indices)")),
    "router_biased_sum": edit(LEARNED, "forward",
        (_SUM, "weights = weights / (scores + self.e_score_correction_bias).gather(1, indices).sum(-1, keepdim=True)")),
    "router_weights_swapped": both(
        edit(LEARNED, "forward", ("sorted=False", "sorted=True"), ("return logits", _FIRST_TWO)),
        edit(HASHED, "forward", ("return logits", _FIRST_TWO))),
    "router_no_bias": weights(
        lambda o: [m.e_score_correction_bias for m in modules(o, LEARNED)], torch.zeros_like),
    "router_one_fewer": attribute(LEARNED, "top_k", lambda k: k - 1),
    "hash_uniform": edit(HASHED, "forward", (_GATHER, "weights = torch.ones_like(indices, dtype=scores.dtype)")),
    "hash_no_scale": attribute(HASHED, "routed_scaling_factor", lambda scale: 1.0),
    "hash_previous_token": edit(HASHED, "forward", ("indices = self.tid2eid[input_ids.reshape(-1)]",
        "before = torch.cat((input_ids.reshape(-1)[:1], input_ids.reshape(-1)[:-1]))\n"
        "    indices = self.tid2eid[before]")),
    # experts
    "no_clamp_routed": attribute(EXPERTS, "limit", lambda limit: math.inf),
    "no_clamp_shared": attribute(SHARED, "limit", lambda limit: math.inf),
    "gate_clamped_below": both(
        edit(EXPERTS, "_apply_gate", ("gate.clamp(max=", "gate.clamp(min=-self.limit, max=")),
        edit(SHARED, "forward", ("(x).clamp(max=", "(x).clamp(min=-self.limit, max="))),
    "gate_up_swapped": both(
        edit(EXPERTS, "_apply_gate", ("gate, up = gate_up", "up, gate = gate_up")),
        edit(SHARED, "forward", ("gate = self.gate_proj", "gate = self.up_PROJ"), ("up = self.up_proj",
             "up = self.gate_proj"), ("up_PROJ", "up_proj"))),
    "gelu": attribute((EXPERTS, SHARED), "act_fn", lambda silu: torch.nn.GELU("tanh")),
    "no_shared_expert": edit(MOE, "forward", ("routed + self.shared_experts(residual)", "routed")),
    "no_routed_experts": edit(MOE, "forward", (_ROUTED, "return torch.zeros_like(routed)")),
    "routed_late": edit(MOE, "forward", (_ROUTED, "return F.pad(routed[:, :-1], (0, 0, 1, 0))")),
    **{f"chunk_{n}_shared_lost": _tail(_SHARED, n) for n in (32, 64, 128)},
    **{f"chunk_{n}_routed_lost": _tail(_ROUTED, n) for n in (32, 64, 128)},
    "experts_swapped": weights(
        lambda o: [tensor for m in modules(o, EXPERTS) for tensor in (m.gate_up_proj, m.down_proj)],
        lambda w: torch.cat((w[1:2], w[:1], w[2:]))),
    "expert_scratch": _late_hidden(lambda used: 1),
    "expert_scratch_token": _late_hidden(lambda used: used),
    "expert_off_by_one": edit(MOE, "forward", ("self.experts(flat, indices,",
        "self.experts(flat, (indices + 1) % self.experts.num_experts,")),
    # output projection, norms
    "o_groups_interleaved": edit(ATTENTION, "forward", ("grouped = attn_output.reshape(",
        "attn_output = attn_output.unflatten(2, (-1, self.config.o_groups)).transpose(2, 3)\n"
        "    grouped = attn_output.reshape(")),
    "no_q_head_norm": identity(layers("self_attn.q_b_norm")),
    "no_kv_norm": identity(layers("self_attn.kv_norm")),
    "no_q_lora_norm": identity(layers("self_attn.q_a_norm")),
    "no_output_norm": identity(lambda o: [o.model.model.norm]),
    "attn_norm_of_ffn": edit(LAYER, "forward", ("self.input_layernorm(", "self.post_attention_layernorm(")),
    "ffn_norm_of_attn": edit(LAYER, "forward", ("self.post_attention_layernorm(", "self.input_layernorm(")),
    "kv_norm_before": _norms_of(lambda o: [m.weight for m in layers("self_attn.kv_norm")(o)]),
    "q_lora_norm_before": _norms_of(lambda o: [m.weight for m in layers("self_attn.q_a_norm")(o)]),
    "compressed_kv_norm": _compressed_norms,
    "rms_eps_1e5": both(attribute(NORM, "variance_epsilon", lambda eps: 1e-5),
                        attribute(PLAIN_NORM, "eps", lambda eps: 1e-5)),
    # streams
    "hc_comb_transposed": edit(LAYER, "forward", ("comb.to(dtype).transpose(-1, -2)", "comb.to(dtype)")),
    "hc_post_half": edit(MIXING, "forward", ("post = 2 * torch", "post = torch")),
    "hc_post_before": _mixing_late(0, 2),
    "hc_comb_before": _mixing_late(1, 2),
    "hc_post_stale": _mixing_late(0, 1),
    "hc_comb_stale": _mixing_late(1, 1),
    "hc_identity": edit(LAYER, "forward", ("torch.matmul(", "(")
        , ("comb.to(dtype).transpose(-1, -2), hidden_states", "hidden_states")),
    "hc_no_norm": identity(lambda o: [m.input_norm for m in modules(o, (MIXING, HEAD))]),
    "hc_eps_0": both(attribute(MIXING, "hc_eps", lambda eps: 0.0), attribute(HEAD, "eps", lambda eps: 0.0)),
    "hc_f16_overflow": each(lambda o: [m.input_norm for m in modules(o, (MIXING, HEAD))], "forward",
        lambda norm: lambda x: norm(x) * (x.square().sum(-1, keepdim=True) <= 65504)),
    "sinkhorn_1": attribute(MIXING, "hc_sinkhorn_iters", lambda n: 1),
    "sinkhorn_short": attribute(MIXING, "hc_sinkhorn_iters", lambda n: n - 1),
    "head_mean": edit(HEAD, "forward", ("return (pre", "return (torch.full_like(pre, 1 / self.hc_mult)")),
}  # fmt: skip

LIBRARY_PATIENTS = [Patient(name, LIBRARY[name].says, apply) for name, apply in _APPLY.items()]


@contextmanager
def _one_scale(_oracle: Oracle) -> Iterator[None]:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        first = x[..., :64].abs().amax(-1, keepdim=True).clamp(min=1e-4)
        scale = torch.exp2(torch.ceil(torch.log2(first / 448)))
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    with patch.object(hf_rounded, "e4m3", rounded):
        yield


ROUNDED_PATIENTS = [Patient("fp8_first_scale", LIBRARY["fp8_first_scale"].says, _one_scale)]
"""Mistakes in a rounding: nothing is wrong where nothing is rounded."""
