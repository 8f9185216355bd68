"""Forty mistakes that engines really have, made in Hugging Face's model by somebody who never read what looks for them.

    for mistake in MISTAKES:
        with mistake.apply(oracle): oracle.logits(ids)

Each is written as an engineer would have got it wrong (a converter, a ring buffer, a tensor-parallel rank, a fused
kernel), and not as a change of one intermediate; which intermediates count as its place was decided afterwards: the
first one that is wrong, and those of which a change has the same effect. ``layer`` is ``EVERY`` where all layers of the
kind have it; any of them counts then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch

from .hf import Oracle
from .misplaced import Alter, Apply, Mistake
from .surgery import HIDDEN, Change, each, modeling, output, rewritten, weights

EVERY = -2
"""``Mistake.layer`` of a mistake that every layer with such a module has."""
HEAD = -1
Wrong = Callable[[Any], Any]
"""A right function -> the one that takes its place."""

KV = ("KVraw", "KVnorm", "KVrope", "KVcur")
OUT = ("kqv_out", "kqv_back", "attn_low")
WINDOW = ("raw_window", "kqv_out")
POOLED = ("attn_comp_candidates", "KVcompress")
SCORED = ("attn_comp_gate_raw", "attn_comp_score_raw", *POOLED)
ROUTED = ("ffn_moe_gate", "ffn_moe_up", "ffn_moe_weighted_swiglu")
WEIGHTS = ("ffn_moe_probs", "ffn_moe_weights_scaled")
PICKED = ("ffn_moe_topk", "ffn_moe_weights_scaled")


def at(layer: int, path: str) -> Callable[[Oracle], list[Any]]:
    """oracle -> the module or tensor ``path`` of a layer, of every layer that has one, or of the model (``HEAD``)."""

    def choose(oracle: Oracle) -> list[Any]:
        roots = [oracle.model] if layer == HEAD else list(oracle.model.model.layers)
        chosen = []
        for here in roots if layer < 0 else [roots[layer]]:
            for name in path.split("."):
                here = getattr(here, name, None)
            chosen += [] if here is None else [here]
        return chosen

    return choose


def out(layer: int, path: str, change: Callable[[Any], Any]) -> Apply:
    """What the module returns goes through ``change``."""
    return output(at(layer, path), change)


def into(layer: int, path: str, change: Alter) -> Apply:
    """What the module is given goes through ``change``."""
    return each(at(layer, path), "forward", lambda plain: lambda x, *more: plain(change(x), *more))


def text(layer: int, path: str, *changes: Change) -> Apply:
    """The module's ``forward`` with fragments of its source replaced."""
    return each(at(layer, path), "forward", lambda plain: MethodType(rewritten(plain, changes), plain.__self__))


def value(layer: int, path: str, name: str, new: Any) -> Apply:
    """Another value of the module's attribute."""
    return each(at(layer, path), name, lambda _old: new)


def tensor(layer: int, path: str, change: Alter) -> Apply:
    """Another content of the tensor, of the same shape."""
    return weights(at(layer, path), change)


def attend(layer: int, wrong: Wrong) -> Apply:
    """The attention of a layer (or of all) computed by wrong(right function)."""

    def apply(_oracle: Oracle) -> AbstractContextManager[Any]:
        right = modeling.eager_attention_forward

        def chosen(module: Any, *args: Any, **more: Any) -> Any:
            function = wrong(right) if layer in (EVERY, module.layer_idx) else right
            return function(module, *args, **more)

        return patch.object(modeling, "eager_attention_forward", chosen)

    return apply


def softmax(*changes: Change) -> Wrong:
    """The attention function with fragments of its source replaced."""
    return lambda right: rewritten(right, changes)


def seen(layer: int, change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Apply:
    """The raw rows' mask (1, 1, T, T) through change(mask, query positions (T, 1), key positions (T,))."""

    def wrong(plain: Any) -> Any:
        def masked(*args: Any, attention_mask: torch.Tensor, **more: Any) -> Any:
            here = torch.arange(attention_mask.shape[-1])
            return plain(*args, attention_mask=change(attention_mask, here[:, None], here), **more)

        return masked

    return each(at(layer, "self_attn"), "forward", wrong)


def rows(to: slice, source: slice) -> Alter:
    """Rows (1, T, ...) or (T, ...) of a result overwritten with others of it."""

    def change(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        old, new = (y, x) if len(x) > 1 else (y[0], x[0])
        old[to] = new[source]
        return y

    return change


def part(index: Any, change: Alter) -> Alter:
    """change(x[index]) in place of that part."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[index] = change(x[index])
        return y

    return changed


def nothing(x: torch.Tensor) -> torch.Tensor:
    """Zeros, as memory that nobody wrote to."""
    return torch.zeros_like(x)


def bits(count: int) -> Alter:
    """Symmetric integers of so many bits, one scale a row."""

    def change(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / (2 ** (count - 1) - 1)
        return (x / scale).round() * scale

    return change


def neighbour_scale(x: torch.Tensor) -> torch.Tensor:
    """The second block of 32 columns with the scale of the first."""
    top = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    return part((slice(None), slice(32, 64)), lambda block: block * (top[:, :1] / top[:, 1:2]))(x)


def merged(right: Any) -> Any:
    """Raw and compressed rows attended to apart, and the two results averaged."""
    return rewritten(right, [("scores = probs[..., :-1]", MERGED)])


MERGED = """n = query.shape[2]
    raw, rest = probs[..., :n], probs[..., n:-1]
    two = rest.sum(-1, keepdim=True) > 0
    scores = torch.cat([raw / (1 - rest.sum(-1, keepdim=True)), rest / rest.sum(-1, keepdim=True).clamp(min=1e-30)], -1)
    scores = torch.where(two, scores / 2, scores)"""


def head_of_neighbour(right: Any) -> Any:
    """Head 2's output (1, T, H, hd) is head 1's."""
    return lambda *args, **more: (right(*args, **more)[0][:, :, [0, 1, 1, 3]].contiguous(), None)


def stale_rms(plain: Any) -> Any:
    """A norm that divides every second row by the scale of the row before, from position 128 on."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + plain.__self__.variance_epsilon)
        scale[:, 129::2] = scale[:, 128:-1:2]
        return x * scale * plain.__self__.weight

    return forward


def rope(which: str, positions: str) -> Change:
    """One use of the rope tables in an attention layer, at other positions, an expression of ``t``."""
    taken = f"(lambda t: {positions})(torch.arange(cos.shape[1]))"
    call = f"{which} = apply_rotary_pos_emb({which}, cos"
    return f"{call}, sin)", f"{call}[:, {taken}], sin[:, {taken}])"


TABLES = "cos, sin = position_embeddings[self.rope_layer_type]"
SIXTH_FOR_FIFTH = "; cos, sin = (x[..., [*range(5), 6, *range(6, 16)]] for x in (cos, sin))"
POSITIONS = "positions * self.compress_rate + first_window_position"
PAIRS = "top_k_pos, token_idx = torch.where(mask[expert_idx])"
WHOLE = slice(None)

_ROUTING: tuple[tuple[str, tuple[str, ...], int, Apply], ...] = (
    ("expert 2 was converted with its gate and up exchanged", ROUTED, 1,
     tensor(1, "mlp.experts.gate_up_proj", part(2, lambda x: x.roll(256, 0)))),
    ("an expert takes 100 tokens a pass and drops the others",
     ("ffn_moe_weights_scaled", "ffn_moe_weighted_swiglu", "ffn_moe_out"), 1,
     text(1, "mlp.experts", (PAIRS, "top_k_pos, token_idx = (i[:100] for i in torch.where(mask[expert_idx]))"))),
    ("row 77 of the routed experts is row 76's (a race)", ("ffn_moe_out", "ffn_out"), 2,
     out(2, "mlp.experts", rows(slice(77, 78), slice(76, 77)))),
    ("routed experts are not clamped", ROUTED, 2, value(2, "mlp.experts", "limit", float("inf"))),
    ("hash routing looks up the token before", (*PICKED, "ffn_moe_out"), 0,
     text(0, "mlp.gate", ("input_ids.reshape(-1)", "input_ids.reshape(-1).roll(1)"))),
    ("expert weights are normalized over all experts", WEIGHTS, 1,
     text(1, "mlp.gate", ("weights.sum(dim=-1", "scores.sum(dim=-1"))),
    ("each of two ranks adds the shared expert", ("ffn_shexp", "ffn_shexp_mid"), EVERY,
     out(EVERY, "mlp.shared_experts", lambda x: 2 * x)),
    ("16 rows of the shared expert's down matrix were never copied", ("ffn_shexp",), 2,
     tensor(2, "mlp.shared_experts.down_proj.weight", part(slice(112, 128), nothing))),
)  # fmt: skip
_ATTENTION: tuple[tuple[str, tuple[str, ...], int, Apply], ...] = (
    ("head 3's query rows were lost with a shard", ("Qraw", "Qnorm", "Qcur"), 1,
     tensor(1, "self_attn.q_b_proj.weight", part(slice(480, 640), nothing))),
    ("keys are rotated by their slot in a ring of 96", KV[2:], 0, text(0, "self_attn", rope("kv", "t % 96"))),
    ("queries are one position ahead from 160 on", ("Qcur",), 1,
     text(1, "self_attn", rope("q", "(t + (t >= 160)).clamp(max=len(t) - 1)"))),
    ("rope pair 5 has the frequency of pair 6", ("rope_tables", "Qcur", *KV[2:], "kqv_back"), 2,
     text(2, "self_attn", (TABLES, TABLES + SIXTH_FOR_FIFTH))),
    ("the output is rotated the wrong way from 150 on", ("kqv_back", "attn_low"), 0,
     text(0, "self_attn", ("cos, -sin)", "cos, torch.cat([-sin[:, :150], sin[:, 150:]], 1))"))),
    ("the first token of a chunk of 64 misses the row before", WINDOW, 0,
     seen(0, lambda m, t, s: m.masked_fill((t % 64 == 0) & (s == t - 1), HIDDEN))),
    ("the write index lags after 128: the row before is overwritten", (*WINDOW, "KVcur"), 2,
     seen(2, lambda m, t, s: m.masked_fill((t >= 128) & (s == t - 1), HIDDEN))),
    ("the window begins at a whole page of 16", WINDOW, EVERY,
     seen(EVERY, lambda m, t, s: m.masked_fill(s < (t - 48).div(16, rounding_mode="floor") * 16, HIDDEN))),
    ("logits are scaled by the width without rope", ("Qnorm", "Qcur", "kqv_out"), 2,
     value(2, "self_attn", "scaling", 128**-0.5)),
    ("sinks are dropped", ("attn_sinks", "kqv_out"), 1,
     attend(1, softmax(("scores = probs[..., :-1]", "scores = probs[..., :-1] / probs[..., :-1].sum(-1, True)")))),
    ("raw and compressed parts are merged with equal weights", OUT[:2], 1, attend(1, merged)),
    ("head 2 has the values of head 1", OUT, 0, attend(0, head_of_neighbour)),
    ("a page of 8 cache rows is another's", KV, 1, out(1, "self_attn.kv_norm", rows(slice(40, 48), slice(120, 128)))),
    ("the output groups come back in another order", ("attn_low",), 1,
     out(1, "self_attn.o_a_proj", lambda x: x.flip(-2))),
    ("the second rank's part of the sum is lost from 150 on", ("attn_out", *OUT), 0,
     into(0, "self_attn.o_b_proj", part((WHOLE, slice(150, None), slice(64, None)), nothing))),
    ("a block column has its neighbour's scale", ("attn_out",), 2,
     tensor(2, "self_attn.o_b_proj.weight", neighbour_scale)),
)  # fmt: skip
_REST: tuple[tuple[str, tuple[str, ...], int, Apply], ...] = (
    ("position bias of the compressor is shifted by one", SCORED, 1,
     tensor(1, "self_attn.compressor.position_bias", lambda x: x.roll(1, 0))),
    ("compressed rows are rotated to the end of their window", ("attn_comp_rope_tables", "KVcompress"), 1,
     text(1, "self_attn.compressor", (POSITIONS, POSITIONS + " + 3"))),
    ("compressed rows 20 to 23 are those of before a rewind", ("KVcompress",), 1,
     out(1, "self_attn.compressor.kv_norm", rows(slice(20, 24), slice(16, 20)))),
    ("the compressor's gate is lost, its position bias is left", SCORED, 2,
     out(2, "self_attn.compressor.gate_proj", lambda x: 0 * x)),
    ("queries of the indexer are not rotated", ("indexer_q", "indexer_scores", "indexer_topk"), 1,
     text(1, "self_attn.compressor.indexer", ("q = apply_rotary_pos_emb(q, cos_q, sin_q)", "q = q"))),
    ("the indexer selects a quarter less", ("indexer_topk",), 1,
     value(1, "self_attn.compressor.indexer", "index_topk", 24)),
    ("queries' low rank norm has no weight", ("q_lora_norm", "Qraw", "Qnorm", "Qcur"), 2,
     tensor(2, "self_attn.q_a_norm.weight", torch.ones_like)),
    ("a norm takes the mean over 256 padded channels", KV[1:], 0,
     out(0, "self_attn.kv_norm", lambda x: x * (256 / 160) ** 0.5)),
    ("every second row is normalized by the row before", ("result_norm", "result_output"), HEAD,
     each(at(HEAD, "model.norm"), "forward", stale_rms)),
    ("two Sinkhorn iterations", ("hc_ffn_pre_comb", "hc_ffn_post"), 1, value(1, "ffn_hc", "hc_sinkhorn_iters", 2)),
    ("streams are mixed by the transposed matrix", ("hc_attn_pre_comb", "hc_attn_post"), 1,
     out(1, "attn_hc", lambda x: (x[0], x[1].mT, x[2]))),
    ("post weights belong to the stream before", ("hc_attn_pre_post_weights", "hc_attn_post"), 2,
     out(2, "attn_hc", lambda x: (x[0].roll(1, -1), *x[1:]))),
    ("biases of pre and post weights are exchanged",
     ("hc_attn_pre_weights", "hc_attn_pre_post_weights", "hc_attn_pre_mixes", "hc_attn_pre"), 1,
     text(1, "attn_hc", ("pre_b, post_b, comb_b", "post_b, pre_b, comb_b"))),
    ("the head's stream weights are not scaled", ("result_hc_pre", "result_hc_weights"), HEAD,
     tensor(HEAD, "model.hc_head.hc_scale", torch.ones_like)),
    ("embeddings from 1024 on are the next token's", ("hc_attn_in",), 0,
     tensor(HEAD, "model.embed_tokens.weight", part(slice(1024, None), lambda x: x.roll(-1, 0)))),
    ("the output matrix is kept in 4 bits", ("result_output",), HEAD, tensor(HEAD, "lm_head.weight", bits(4))),
)  # fmt: skip
MISTAKES = tuple(Mistake(*entry) for entry in (*_ROUTING, *_ATTENTION, *_REST))
