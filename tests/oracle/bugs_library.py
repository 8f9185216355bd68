"""Faults of ``ds4ref.variants.LIBRARY`` made again in Hugging Face's code, under the same names.

Each was written from the one line that the library says about it, as a mistake in this other code base; whether both
mean the same is then a fact about the descriptions (test_bugs). Faults about storage formats are made with gguf-py's
dequantizers: one that takes two fields for each other gives what a right one gives on blocks with the fields exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
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
    rotated,
    weights,
)

POOLS = (CSA, INDEXER, HCA)

# --- attention: which rows


def _cut(size: int) -> Apply:
    return masked(lambda mask, t, key, _: mask.masked_fill(key // size != t // size, HIDDEN))


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


# --- routers, experts


_ROUTED = "return routed"


_GATHER = "weights = scores.gather(1, indices)"
_SUM = "weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)"
_FIRST, _SECOND = "[..., self.head_dim :]", ":-1, :, : self.head_dim]"
BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"

_APPLY: dict[str, Apply] = {
    # which rows, sinks
    "window_short": configured(sliding_window=lambda n: n - 1),
    "self_missing": masked(lambda mask, t, key, _: mask.masked_fill(key == t, HIDDEN)),
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
    "rms_eps_1e5": both(attribute(NORM, "variance_epsilon", lambda eps: 1e-5),
                        attribute(PLAIN_NORM, "eps", lambda eps: 1e-5)),
    # streams
    "hc_comb_transposed": edit(LAYER, "forward", ("comb.to(dtype).transpose(-1, -2)", "comb.to(dtype)")),
    "hc_post_half": edit(MIXING, "forward", ("post = 2 * torch", "post = torch")),
    "hc_identity": edit(LAYER, "forward", ("torch.matmul(", "(")
        , ("comb.to(dtype).transpose(-1, -2), hidden_states", "hidden_states")),
    "hc_eps_0": both(attribute(MIXING, "hc_eps", lambda eps: 0.0), attribute(HEAD, "eps", lambda eps: 0.0)),
    "sinkhorn_1": attribute(MIXING, "hc_sinkhorn_iters", lambda n: 1),
    "sinkhorn_short": attribute(MIXING, "hc_sinkhorn_iters", lambda n: n - 1),
}  # fmt: skip

# --- dequantizers

Rearrange = Callable[[np.ndarray], None]


def misread(fmt: str, rearrange: Rearrange) -> Apply:
    """Every tensor of a format read wrongly; ``rearrange`` changes blocks uint8 (n, bytes of a block) in place."""
    kind = gguf.GGMLQuantizationType[fmt]
    size = gguf.GGML_QUANT_SIZES[kind][1]

    def wrong(data: np.ndarray, qtype: gguf.GGMLQuantizationType) -> np.ndarray:
        if qtype == kind:
            data = np.array(data, np.uint8)
            rearrange(data.reshape(-1, size))
        return right(data, qtype)

    right = gguf.quants.dequantize
    return reread(gguf.quants, "dequantize", lambda: wrong)


def reread(owner: Any, part: str, wrong: Callable[[], Any]) -> Apply:
    """The file read while ``part`` of ``owner``, which belongs to gguf-py, is ``wrong()``."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with patch.object(owner, part, wrong()):
            other = Oracle.load(oracle.path, torch.get_num_threads()).model.state_dict()
        kept = oracle.model.state_dict()
        changed = {name for name, value in other.items() if not torch.equal(value, kept[name])}
        if not changed:
            raise ValueError(f"nothing in {oracle.path} reads otherwise")
        backup = {name: kept[name].clone() for name in changed}
        try:
            with torch.no_grad():
                for name in changed:
                    kept[name].copy_(other[name])
            yield
        finally:
            with torch.no_grad():
                for name in changed:
                    kept[name].copy_(backup[name])

    return apply


def _nibbles(first: int, last: int) -> Rearrange:
    def change(blocks: np.ndarray) -> None:
        part = blocks[:, first:last]
        blocks[:, first:last] = (part << 4) | (part >> 4)

    return change


def _q2_minimum_sign(blocks: np.ndarray) -> None:
    blocks[:, 83] ^= 0x80


def _iq2_groups(change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Rearrange:
    """change(indices (n, 8, 4) uint8, words (n, 8) uint32) of the eight groups of 32 weights."""

    def rearrange(blocks: np.ndarray) -> None:
        groups = blocks[:, 2:].reshape(len(blocks), 8, 8)
        words = groups[..., 4:].copy().view("<u4")[..., 0]
        indices, words = change(groups[..., :4].copy(), words)
        groups[..., :4] = indices
        groups[..., 4:] = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
        blocks[:, 2:] = groups.reshape(len(blocks), 64)

    return rearrange


def _low_scale(indices: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale lies in the top four bits; it is looked for in the lowest, the signs above it."""
    return indices, words >> 4 | (words & 15) << 28


def _q4_low_bits(blocks: np.ndarray) -> None:
    """Scales and minima 4 to 7 keep two bits in the tops of the bytes of 0 to 3."""
    blocks[:, 4:12] &= 0x3F


_IQ2 = gguf.quants.IQ2_XXS


def iq2_signs(change: Callable[[int, int], int]) -> Apply:
    """IQ2_XXS with change(entry, its eight signs as bits) for every entry of the table of signs."""
    return reread(_IQ2, "ksigns", lambda: bytes(change(entry, bits) for entry, bits in enumerate(_IQ2.ksigns)))


_READ: dict[str, Apply] = {
    "q8_0_nibbles": misread("Q8_0", _nibbles(2, 34)),
    "q2_k_scale_nibbles": misread("Q2_K", _nibbles(0, 16)),
    "q2_k_min_added": misread("Q2_K", _q2_minimum_sign),
    "iq2_xxs_scale_low": misread("IQ2_XXS", _iq2_groups(_low_scale)),
    "iq2_xxs_sign_parity": iq2_signs(lambda entry, bits: bits & 127),
    "q4_k_scale_bits": misread("Q4_K", _q4_low_bits),
}

LIBRARY_BUGS = [Bug(name, LIBRARY[name].says, apply) for name, apply in {**_APPLY, **_READ}.items()]


@contextmanager
def _one_scale(_oracle: Oracle) -> Iterator[None]:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        first = x[..., :64].abs().amax(-1, keepdim=True).clamp(min=1e-4)
        scale = torch.exp2(torch.ceil(torch.log2(first / 448)))
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    with patch.object(hf_rounded, "e4m3", rounded):
        yield


ROUNDED_BUGS = [Bug("fp8_first_scale", LIBRARY["fp8_first_scale"].says, _one_scale)]
"""Mistakes in a rounding: nothing is wrong where nothing is rounded."""
