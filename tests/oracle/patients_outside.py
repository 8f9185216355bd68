"""Mistakes in Hugging Face's code that ``ds4ref.variants.LIBRARY`` does not have, from hardly visible to gross.

A diagnosis can name none of them. What it must never do is call such an engine right without saying that it could not
have seen the mistake. Keep them out of the library; a fault that goes in there leaves this list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .hf import Oracle
from .surgery import (
    ATTENTION,
    CSA,
    EXPERTS,
    HASHED,
    HCA,
    HIDDEN,
    INDEXER,
    LAYER,
    LEARNED,
    MIXING,
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
    layers,
    masked,
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


def _int8_rows(x: Tensor) -> Tensor:
    """A whole row to int8 with one scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) * scale


def _angles(dtype: torch.dtype) -> Apply:
    """Frequencies kept in a short type, as a model cast as a whole keeps them."""
    rounded = lambda table: table.to(dtype).float()  # noqa: E731
    rope = modeling.DeepseekV4RotaryEmbedding
    return both(*(_buffer(rope, f"{kind}_inv_freq", rounded) for kind in ("main", "compress")))


def _buffer(kinds: Any, name: str, change: Callable[[Tensor], Tensor]) -> Apply:
    return weights(lambda oracle: [getattr(module, name) for module in modules(oracle, kinds)], change)


def _row_swapped(table: Tensor) -> Tensor:
    """Rows 10 and 11 exchanged."""
    order = torch.arange(len(table))
    order[[10, 11]] = order[[11, 10]]
    return table[order]


def _first(x: Tensor, value: float) -> Tensor:
    """Entry 0 of the first axis times ``value``."""
    x = x.clone()
    x[0] *= value
    return x


def _shifted_mask(rows: int) -> Apply:
    """Window shorter by ``rows`` in layers with compressed rows only."""

    def change(mask: Tensor, t: Tensor, key: Tensor, oracle: Oracle) -> Tensor:
        return mask.masked_fill(t - key >= oracle.config.sliding_window - rows, HIDDEN)

    return masked(change, only=lambda attention: attention.compressor is not None)


_TURN = "cos * cos[:, 1:2] {0} sin * sin[:, 1:2], sin * cos[:, 1:2] {1} cos * sin[:, 1:2]"
_BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"
_SCORES = "scores = self.score_fn(logits)"
_SUM = "weights.sum(dim=-1, keepdim=True) + 1e-20"
_SCALING = "* scaling\n"
_PROBS = "scores = probs[..., :-1]"
_COMB = "comb.to(dtype).transpose(-1, -2)"
_ROUTED = (LEARNED, HASHED)

_LIST: list[tuple[str, str, Apply]] = [
    # one number wrong
    *((f"route_scale_{f}", f"route scale x {f}", attribute(_ROUTED, "routed_scaling_factor", _scaled(f)))
      for f in (0.9, 0.97, 1.02)),
    ("hash_scale_0.95", "route scale x 0.95 in hash layers", attribute(HASHED, "routed_scaling_factor", _scaled(0.95))),
    *((f"sinkhorn_{n}", f"{n} Sinkhorn rounds", attribute(MIXING, "hc_sinkhorn_iters", lambda _, n=n: n))
      for n in (2, 3, 5, 10, 15)),
    *((f"rms_eps_{eps:g}", f"RMS norm eps {eps:g}", _norm_eps(eps)) for eps in (3e-6, 1e-4, 1e-3, 1e-2)),
    *((f"hc_eps_{eps:g}", f"hyper-connections: eps {eps:g}", attribute(MIXING, "hc_eps", lambda _, eps=eps: eps))
      for eps in (1e-5, 1e-4, 1e-2)),
    *((f"attn_scale_{f}", f"attention scale x {f}", attribute(ATTENTION, "scaling", _scaled(f)))
      for f in (0.95, 0.995, 1.0001, 1.05)),
    ("attn_scale_rope_dims", "attention scale 1 / sqrt(rope dims)",
     each(layers("self_attn"), "scaling", lambda _: 64**-0.5)),
    ("theta_1.1", "rope base x 1.1", rope_changed("main", rope_theta=_scaled(1.1))),
    ("compress_theta_1.1", "compressed rope base x 1.1", rope_changed("compress", rope_theta=_scaled(1.1))),
    ("yarn_factor_8", "YaRN factor 8", rope_changed("compress", factor=lambda _: 8.0)),
    ("yarn_beta_fast_16", "YaRN beta_fast 16", rope_changed("compress", beta_fast=lambda _: 16.0)),
    ("yarn_beta_slow_2", "YaRN beta_slow 2", rope_changed("compress", beta_slow=lambda _: 2.0)),
    ("yarn_context_4096", "YaRN original context 4096",
     rope_changed("compress", original_max_position_embeddings=lambda _: 4096)),
    *((f"clamp_{n}", f"clamp at {n}", attribute((EXPERTS, SHARED), "limit", lambda _, n=n: float(n)))
      for n in (5, 9, 11, 20)),
    *((f"shared_{f}", f"shared expert x {f}", output(layers("mlp.shared_experts"), _scaled(f)))
      for f in (0.97, 0.999, 1.00001, 1.5)),
    ("embedding_1.01", "embedding x 1.01", weights(lambda o: [o.model.model.embed_tokens.weight], _scaled(1.01))),
    ("logits_1.02", "logits x 1.02", output(lambda o: [o.model.lm_head], _scaled(1.02))),
    ("hc_scale_half", "hyper-connections: scales halved",
     weights(lambda o: [m.scale for m in modules(o, MIXING)], _scaled(0.5))),
    ("router_bias_half", "router: selection bias x 0.5",
     weights(lambda o: [m.e_score_correction_bias for m in modules(o, LEARNED)], _scaled(0.5))),
    ("router_sum_eps", "router: 0.01 added to the sum of weights",
     forward(*_ROUTED, to=[(_SUM, "weights.sum(dim=-1, keepdim=True) + 1e-2")])),
    # how many, which
    *((f"window_{n:+}", f"window {n:+} rows", configured(sliding_window=lambda w, n=n: w + n)) for n in (-4, 4)),
    ("window_short_compressed", "window one row short in layers with compressed rows", _shifted_mask(1)),
    *((f"indexer_topk_{n:+}", f"indexer selects {n:+} rows", attribute(INDEXER, "index_topk", lambda k, n=n: k + n))
      for n in (-2, 1, 3)),
    ("router_one_more", "router: one expert more", attribute(LEARNED, "top_k", lambda k: k + 1)),
    ("hash_one_fewer", "hash layers: last expert left out", edit(HASHED, "forward",
     ("input_ids.reshape(-1)].long()", "input_ids.reshape(-1)].long()[:, :-1]"))),
    ("hash_by_score", "hash layers: experts chosen by score", edit(HASHED, "forward",
     ("indices = self.tid2eid[input_ids.reshape(-1)].long()", "indices = scores.topk(self.top_k, dim=-1).indices"))),
    ("indexer_head_missing", "indexer: first head left out",
     edit(SCORER, "forward", (".sum(dim=2)", "[:, :, 1:].sum(dim=2)"))),
    ("indexer_weights_relu", "indexer: negative head weights cut off", edit(SCORER, "forward",
     ("(scores * weights.", "(scores * weights.relu()."))),
    # attention
    ("head_zero", "the first head's output lost", edit(ATTENTION, "forward",
     (_BACK, f"{_BACK}\n"
      "    attn_output = torch.cat((torch.zeros_like(attn_output[:, :, :1]), attn_output[:, :, 1:]), 2)"))),
    ("sink_next_head", "every head takes the sink of the next", _sinks(lambda sinks: sinks.roll(-1))),
    ("sink_not_shifted", "attention sink not shifted by the row maximum", edit(modeling, "eager_attention_forward",
     ("combined_logits = combined_logits - combined_logits.max(dim=-1, keepdim=True).values",
      "top = attn_weights.max(dim=-1, keepdim=True).values\n"
      "    combined_logits = torch.cat((attn_weights - top, sinks), dim=-1)"))),
    ("sink_missing_layer_1", "no attention sink in the second layer",
     weights(lambda o: [_layer(o, 1).self_attn.sinks], lambda sinks: torch.full_like(sinks, -torch.inf))),
    ("attn_softcap_50", "attention logits capped at 50 by tanh", edit(modeling, "eager_attention_forward",
     (_SCALING, "* scaling\n    attn_weights = 50 * torch.tanh(attn_weights / 50)\n"))),
    ("probs_bf16", "attention probabilities in bfloat16", edit(modeling, "eager_attention_forward",
     (_PROBS, "scores = probs[..., :-1].bfloat16().float()"))),
    ("rows_int8", "cached rows in int8", edit(ATTENTION, "forward",
     ("kv = apply_rotary_pos_emb(kv, cos, sin)",
      "kv = keep_row(apply_rotary_pos_emb(kv, cos, sin))"), given={"keep_row": _int8_rows})),
    ("query_position_late", "queries rotated at the next position", edit(ATTENTION, "forward",
     ("q = apply_rotary_pos_emb(q, cos, sin)", f"q = apply_rotary_pos_emb(q, {_TURN.format('-', '+')})"))),
    ("inverse_position_early", "inverse rotation at the position before", edit(ATTENTION, "forward",
     (_BACK, "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos * cos[:, 1:2] + sin * sin[:, 1:2], "
      "cos * sin[:, 1:2] - sin * cos[:, 1:2]).transpose(1, 2)"))),
    ("no_inverse_rope_compressed", "no inverse rotation in layers with compressed rows", edit(ATTENTION, "forward",
     (_BACK, "if self.compressor is None:\n        " + _BACK))),
    ("angles_bf16", "rope frequencies in bfloat16", _angles(torch.bfloat16)),
    ("angles_f16", "rope frequencies in binary16", _angles(torch.float16)),
    ("o_groups_reversed", "output projection groups in reverse order", edit(ATTENTION, "forward",
     ("self.o_a_proj(grouped)", "self.o_a_proj(grouped.flip(2))"))),
    ("head_norm_mean", "query head norm subtracts the mean",
     each(layers("self_attn.q_b_norm"), "forward", lambda norm: lambda x: norm(x - x.mean(-1, keepdim=True)))),
    ("norm_plus_one", "key-value norm multiplies by 1 + weight",
     weights(lambda o: [m.weight for m in layers("self_attn.kv_norm")(o)], lambda w: w + 1)),
    # compressors
    ("ape_phase", "compressor position bias off by one phase", forward(*POOLS, to=[
        ("self.position_bias", "self.position_bias.roll(1, 0)")])),
    ("ape_missing_after_100", "compressor position bias missing after position 100", forward(*POOLS, to=[
        ("self.position_bias",
         "self.position_bias * (torch.arange(n_windows) * self.compress_rate < 100)[:, None, None]")])),
    ("ape_missing_indexer", "no position bias in the indexer's compressor",
     edit(INDEXER, "forward", (" + self.position_bias", ""))),
    ("pooled_by_mean", "compressed rows are plain means", both(
        forward(CSA, INDEXER, to=[("new_gate.softmax(", "(new_gate.clamp(max=0) * 0).nan_to_num(-1e30).softmax(")]),
        edit(HCA, "forward", ("chunk_gate.softmax(", "(chunk_gate * 0).softmax(")))),
    ("rope_layer_2_main", "the first compressed layer's queries and raw rows take the main rope",
     each(lambda o: [_layer(o, 2).self_attn], "rope_layer_type", lambda _: "main")),
    # experts and routers
    ("router_no_sqrt", "router: softplus without the square root",
     forward(*_ROUTED, to=[(_SCORES, "scores = F.softplus(logits)")])),
    ("router_relu", "router: sqrt(ReLU) for sqrt(softplus)",
     forward(*_ROUTED, to=[(_SCORES, "scores = F.relu(logits).sqrt()")])),
    ("quick_gelu", "x sigmoid(1.702 x) for SiLU in the experts", both(
        edit(EXPERTS, "_apply_gate", ("self.act_fn(gate)", "(gate * torch.sigmoid(1.702 * gate))")),
        edit(SHARED, "forward", ("self.act_fn(gate)", "(gate * torch.sigmoid(1.702 * gate))")))),
    ("weights_on_input", "routing weights put on the experts' input", edit(EXPERTS, "forward",
     ("hidden_states[token_idx]", "hidden_states[token_idx] * top_k_weights[token_idx, top_k_pos, None]"),
     ("self.down_proj[expert_idx]) * top_k_weights[token_idx, top_k_pos, None]", "self.down_proj[expert_idx])"))),
    ("expert_5_missing", "expert 5's output lost", weights(
        lambda o: [m.down_proj[5] for m in modules(o, EXPERTS)], torch.zeros_like)),
    ("expert_0_layer_4", "expert 0 of the fifth layer x 1.1",
     weights(lambda o: [_layer(o, 4).mlp.experts.down_proj[0]], _scaled(1.1))),
    # streams, layers, ends
    ("comb_transposed_ffn", "mixing matrix not transposed after the ffn", edit(LAYER, "forward",
     (f"mlp_output.unsqueeze(-2) + torch.matmul(\n        {_COMB}",
      "mlp_output.unsqueeze(-2) + torch.matmul(\n        comb.to(dtype)"))),
    ("pre_softmax", "hyper-connections: softmax for the pre weights", edit(MIXING, "forward",
     ("pre = torch.sigmoid(pre_w * pre_scale + pre_b)", "pre = torch.softmax(pre_w * pre_scale + pre_b, -1)"))),
    ("layer_3_skipped", "the fourth layer left out", each(lambda o: [_layer(o, 3)], "forward",
     lambda _: lambda hidden_states, **more: hidden_states)),
    ("ffn_5_skipped", "the sixth layer without its experts", output(lambda o: [_layer(o, 5).mlp], torch.zeros_like)),
    ("output_rows_swapped", "output matrix: rows 10 and 11 exchanged",
     weights(lambda o: [o.model.lm_head.weight], _row_swapped)),
    ("embedding_row_zero", "one token's embedding is 0",
     weights(lambda o: [o.model.model.embed_tokens.weight], lambda w: _first(w, 0.0))),
    ("logits_softcap_30", "logits capped at 30 by tanh",
     output(lambda o: [o.model.lm_head], lambda x: 30 * torch.tanh(x / 30))),
    ("shared_gate_sigmoid", "shared expert: sigmoid for SiLU",
     edit(SHARED, "forward", ("self.act_fn(gate)", "torch.sigmoid(gate)"))),
    ("norm_channel_lost", "one channel of the block input norms lost",
     weights(lambda o: [m.weight for m in layers("input_layernorm")(o)], lambda w: _first(w, 0.0))),
]  # fmt: skip

OUTSIDE_PATIENTS = [Patient(name, says, apply) for name, says, apply in _LIST]
