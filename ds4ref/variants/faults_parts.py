"""More injected bugs, inside the attention and FFN blocks: indexer, experts, norms, residual streams
(hyper-connections), cache roundings.

Where a fault uses something of the previous layer, the first layer uses its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..archs.deepseek4.chunk import Chunk
from .faults import Edit, Fault, _op, _router, _take, _value

# --- indexer


def _positive_only(value: np.ndarray | None, layer: int, chunk: Chunk, taps: dict) -> np.ndarray | None:
    """Drop selected rows without a positive score, like a top-k whose running maximum starts from 0."""
    if value is None:
        return None
    scores = np.take_along_axis(taps["indexer_scores"], np.maximum(value, 0), axis=1)
    every = chunk.visible(4) <= chunk.shape.index_topk
    return np.where((scores > 0) | every[:, None], value, -1).astype(np.int32)


def _topk_short(select: Any) -> Any:
    return lambda scores, visible, k: select(scores, visible, k - 1)


def _ties_high(select: Any) -> Any:
    """Select the row with the higher number on ties."""

    def wrong(scores, visible, k):
        out = np.full((len(scores), k), -1, np.int32)
        for t, n in enumerate(visible):
            order = np.lexsort((-np.arange(n), -scores[t, :n]))[:k]
            out[t, : len(order)] = np.sort(order)
        return out

    return wrong


def _index_no_rope(chunk: Chunk) -> None:
    width = chunk.shape.index_dim

    def make(rope: Any) -> Any:
        return lambda x, cos, sin, inverse=False: x if x.shape[-1] == width else rope(x, cos, sin, inverse)

    _op("rope", make)(chunk)


def _rows_not_rotated(chunk: Chunk) -> None:
    """Apply the Hadamard transform to the indexer's queries but not to its cached rows, so that their scores are
    meaningless."""
    right = chunk.index_rounding
    chunk.index_rounding = lambda v: right(v) if v.ndim == 3 else chunk.ops.round_e2m1(v)  # type: ignore[method-assign]


def _fp8_whole(chunk: Chunk) -> None:
    """Round the rotary channels of a cached row to E4M3 as well; an incomplete last block of 64 channels has its own
    scale."""

    def wrong(rows: np.ndarray) -> np.ndarray:
        short = -rows.shape[-1] % 64
        whole = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, short)])
        return chunk.ops.round_e4m3(whole)[..., : rows.shape[-1]]

    chunk.kv_rounding = wrong  # type: ignore[method-assign]


def _fp8_first_scale(chunk: Chunk) -> None:
    """Round a whole cached row with the scale of its first 64 channels, so that larger values elsewhere saturate.

    Only that is simulated: scales are powers of two, and one that is too large changes only values some 2^15 times
    smaller than the largest it can represent.
    """
    right = chunk.kv_rounding

    def wrong(rows: np.ndarray) -> np.ndarray:
        most = np.maximum(np.abs(rows[:, :64]).max(axis=1, keepdims=True), np.float32(1e-4))
        top = (448 * np.exp2(np.ceil(np.log2(most / 448)))).astype(np.float32)
        plain = chunk.shape.plain_dim
        return right(np.concatenate((np.clip(rows[:, :plain], -top, top), rows[:, plain:]), axis=1))

    chunk.kv_rounding = wrong  # type: ignore[method-assign]


# --- experts


def _gelu(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _gelu_for_silu(swiglu: Any) -> Any:
    def wrong(gate, up, limit, weight=None):
        mid = _gelu(np.minimum(gate, limit)) * np.clip(up, -limit, limit)
        return (mid if weight is None else mid * weight[..., None]).astype(np.float32)

    return wrong


def _one_fewer(p, ids, weights, logits, bias, k, scale):
    reduced = weights.copy()
    reduced[:, -1] = 0
    return p, ids, (reduced / reduced.sum(axis=1, keepdims=True) * scale).astype(np.float32)


def _previous_token(route: Any) -> Any:
    def wrong(logits, bias, hash_ids, k, scale, floor):
        if hash_ids is not None:
            hash_ids = np.concatenate((hash_ids[:1], hash_ids[:-1]))
        return route(logits, bias, hash_ids, k, scale, floor)

    return wrong


def _biased_sum(probs, ids, weights, logits, bias, k, scale):
    """Divide the experts' weights by the sum of their scores plus selection bias; correct is the sum without bias."""
    total = _take(probs if bias is None else probs + bias, ids).sum(axis=1, keepdims=True)
    return probs, ids, (_take(probs, ids) / total * scale).astype(np.float32)


def _exchanged(ids: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    return (np.where(ids < 2, 1 - ids, ids) % chunk.shape.n_experts).astype(np.int32)


def _one_scratch(mid: np.ndarray) -> np.ndarray:
    """Give each expert the hidden vector (of (T, K, ff)) of the expert before, as if all shared one scratch buffer that
    is read before it is written."""
    late = np.zeros_like(mid)
    late.reshape(-1, mid.shape[2])[1:] = mid.reshape(-1, mid.shape[2])[:-1]
    return late


def _token_before(value: np.ndarray) -> np.ndarray:
    """Give each token the value (T, ...) of the token before it, and the first token zeros."""
    return np.concatenate((np.zeros_like(value[:1]), value[:-1]))


# --- attention output, residual streams, norms


def _back_with_main(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    return chunk.ops.rope(taps["kqv_out"], *chunk.rope_tables(False, chunk.positions), inverse=True)


def _of_layer_before(what: str, halves: bool) -> dict[str, Edit]:
    """Return edits that use the hyper-connections' mixing weights ``what`` of the previous layer or, if ``halves``, of
    the attention or FFN half before."""

    def make(slot: str) -> Edit:
        def edit(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
            before, taps[slot] = taps.get(slot, value), value
            return before

        return edit

    return {f"hc_{half}_pre_{what}": make(what if halves else f"{what} {half}") for half in ("attn", "ffn")}


def _norm(source: str, weight: str, before: bool = False) -> Edit:
    """Return an edit that computes the RMS norm of the intermediate ``source`` with the norm weights ``weight`` of this
    layer or, if ``before``, of the previous one."""

    def edit(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
        own, slot = getattr(chunk.w, weight), f"{weight} before"
        used, taps[slot] = (taps.get(slot, own) if before else own), own
        return chunk.ops.rms_norm(taps[source], used, chunk.shape.rms_eps)

    return edit


def _compressed_by_kv_norm(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    ops = chunk.ops
    row = ops.rms_norm(ops.pool(*taps["attn_comp_candidates"]), chunk.w.attn_kv_a_norm, chunk.shape.rms_eps)
    row = ops.rope(row[:, None, :], *taps["attn_comp_rope_tables"])[:, 0]
    return chunk.store(chunk.kv_rounding(row))


def _interleaved(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    heads, groups = value.shape[1], chunk.shape.o_groups
    return np.ascontiguousarray(value[:, np.arange(heads).reshape(-1, groups).T.ravel()])


def _identity_comb(split: Any) -> Any:
    def wrong(*args):
        pre, post, comb = split(*args)
        return pre, post, np.ascontiguousarray(np.broadcast_to(np.eye(comb.shape[1], dtype=np.float32), comb.shape))

    return wrong


def _no_norm(chunk: Chunk) -> None:
    linear = chunk.ops.linear
    _op("hc_mix", lambda mix: lambda X, fn, eps: linear(X.reshape(len(X), -1), fn, "float"))(chunk)


def _overflow(mix: Any) -> Any:
    """Simulate the norm of the residual streams with its sum of squares in float16: above 65504 it overflows, and the
    norm is 0."""

    def wrong(X, fn, eps):
        squares = np.square(X, dtype=np.float64).sum(axis=(1, 2))
        return np.where(squares[:, None] > 65504, np.float32(0), mix(X, fn, eps))

    return wrong


LIST = [
    Fault("indexer_positive_only", "indexer never selects rows with negative scores",
          edits={"indexer_topk": _positive_only}),
    Fault("indexer_topk_short", "indexer selects one row too few", _op("select_rows", _topk_short)),
    Fault("indexer_ties_high", "indexer ties go to the later row", _op("select_rows", _ties_high), quiet=True),
    Fault("indexer_no_rope", "indexer queries and rows not rotated", _index_no_rope),
    Fault("indexer_rows_no_hadamard", "Hadamard on indexer queries but not on rows", _rows_not_rotated,
          needs="indexer_qat"),
    Fault("fp8_whole_row", "E4M3 on the rotary channels too", _fp8_whole, needs="kv_fp8"),
    Fault("fp8_first_scale", "E4M3 scale of a row's first block used for all of its blocks", _fp8_first_scale,
          needs="kv_fp8"),
    Fault("no_kv_norm", "key-value norm missing", edits={"KVnorm": lambda value, layer, chunk, taps: taps["KVraw"]}),
    Fault("no_q_lora_norm", "query low-rank norm missing",
          edits={"q_lora_norm": lambda value, layer, chunk, taps: taps["q_lora"]}),
    Fault("attn_norm_of_ffn", "attention's input normed by the FFN's norm weights",
          edits={"attn_norm": _norm("hc_attn_pre", "ffn_norm")}),
    Fault("ffn_norm_of_attn", "FFN's input normed by attention's norm weights",
          edits={"ffn_norm": _norm("hc_ffn_pre", "attn_norm")}),
    Fault("kv_norm_before", "key-value norm by the weights of the layer before",
          edits={"KVnorm": _norm("KVraw", "attn_kv_a_norm", before=True)}),
    Fault("q_lora_norm_before", "query low-rank norm by the weights of the layer before",
          edits={"q_lora_norm": _norm("q_lora", "attn_q_a_norm", before=True)}),
    Fault("compressed_kv_norm", "compressed rows normed by the weights of the raw rows' norm",
          edits={"KVcompress": _compressed_by_kv_norm}),
    Fault("inverse_main_rope", "attention output of compressed layers rotated back with the main rope",
          edits={"kqv_back": _back_with_main}),
    Fault("o_groups_interleaved", "output projection groups take every n-th head", edits={"kqv_back": _interleaved}),
    Fault("gate_up_swapped", "expert gate and up exchanged",
          _op("swiglu", lambda op: lambda gate, up, *rest: op(up, gate, *rest))),
    Fault("gelu", "GELU instead of SiLU in the experts", _op("swiglu", _gelu_for_silu)),
    Fault("no_shared_expert", "shared expert missing", edits={"ffn_shexp": _value(np.zeros_like)}),
    Fault("no_routed_experts", "routed experts missing", edits={"ffn_moe_out": _value(np.zeros_like)}),
    Fault("routed_late", "routed experts' output is that of the token before",
          edits={"ffn_moe_out": _value(_token_before)}),
    Fault("expert_scratch", "an expert reads the hidden vector of the expert before, in one scratch for all tokens",
          edits={"ffn_moe_weighted_swiglu": _value(_one_scratch)}),
    Fault("expert_scratch_token", "an expert reads the hidden vector that its place had for the token before",
          edits={"ffn_moe_weighted_swiglu": _value(_token_before)}),
    Fault("router_one_fewer", "router: the last chosen expert left out", _router(_one_fewer, False)),
    Fault("router_biased_sum", "router: weights divided by the sum of the biased scores", _router(_biased_sum, False)),
    Fault("router_weights_swapped", "weights of a token's first two experts exchanged",
          edits={"ffn_moe_weights_scaled": _value(lambda w: np.concatenate((w[:, 1::-1], w[:, 2:]), axis=1))}),
    Fault("experts_swapped", "experts 0 and 1 exchanged", edits={"ffn_moe_topk": _exchanged}),
    Fault("expert_off_by_one", "routed experts off by one",
          edits={"ffn_moe_topk": lambda ids, layer, chunk, taps: (ids + 1) % np.int32(chunk.shape.n_experts)}),
    Fault("hash_previous_token", "hash layers: experts of the previous token", _op("route", _previous_token)),
    Fault("hc_identity", "hyper-connections: streams not mixed", _op("hc_split", _identity_comb)),
    Fault("hc_post_before", "hyper-connections: post weights of the layer before",
          edits=_of_layer_before("post_weights", False)),
    Fault("hc_comb_before", "hyper-connections: comb of the layer before", edits=_of_layer_before("comb", False)),
    Fault("hc_post_stale", "hyper-connections: post weights of the half layer before",
          edits=_of_layer_before("post_weights", True)),
    Fault("hc_comb_stale", "hyper-connections: comb of the half layer before", edits=_of_layer_before("comb", True)),
    Fault("hc_no_norm", "hyper-connections: norm before the mixing logits missing", _no_norm),
    Fault("hc_f16_overflow", "hyper-connections: sum of squares overflows binary16", _op("hc_mix", _overflow)),
    Fault("head_mean", "output head: streams averaged",
          edits={"result_hc_weights": _value(lambda w: np.full_like(w, 1 / w.shape[1]))}),
    Fault("no_output_norm", "output norm missing",
          edits={"result_norm": lambda value, layer, chunk, taps: taps["result_hc"]}),
]  # fmt: skip
