"""The graph of the pass: for every point its input points, formula, weight tensors and section of model.md.

A *point* is a named intermediate (``ds4ref.archs.deepseek4.hooks``). If some points were
not dumped, the error is located in a span of ops, from the nearest dumped points upstream.

    span(("Qcur", 3), {("attn_norm", 3)}, ...)  ->  q_lora, q_lora_norm, Qraw, Qnorm, rope_tables, Qcur
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

BEFORE = "<"
"""Prefix of an input that is a point of the previous layer."""


class Op(NamedTuple):
    """How one point is computed.

    inputs   points it is computed from; a name prefixed with BEFORE is a point of the previous layer
    formula  formula in the notation of docs/explanation/model.md
    section  heading in docs/explanation/model.md
    axes     one letter an axis: T token, N compressed row, W place in a window, H head, S slot (n-th chosen expert),
             E expert, C stream, K source stream, R row of a score, F channel
    tensors  weights it uses, as the file's names without "blk.N." and ".weight"
    carried  inputs that are also read at earlier tokens
    """

    inputs: tuple[str, ...]
    formula: str
    section: str
    axes: str
    tensors: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()


_PASS, _HC, _ATTENTION, _POSITIONS = "1.3 The pass", "3. Hyper-connections", "4. Attention", "5. Positions"
_COMPRESSOR, _INDEXER, _EXPERTS, _HEAD = "6. Compressors", "7. Indexer", "8. Experts", "9. Output head"
_ROUNDING = "10.3 Cache formats"


def _mixing(half: str, before: str) -> dict[str, Op]:
    hc = f"hc_{half}"
    entered = "X after the half layer before" if half == "ffn" else "X after the layer before; layer 0: the embedding"
    tensors = () if half == "ffn" else ("token_embd",)
    out = f"{half}_out"
    return {
        f"{hc}_in": Op((before,), entered, _PASS, "TCF", tensors),
        f"{hc}_pre_mixes": Op((f"{hc}_in",), "m = fn rms(X flattened)", _HC, "TF", (f"{hc}_fn",)),
        f"{hc}_pre_weights": Op((f"{hc}_pre_mixes",), "pre = sigmoid(m scale0 + base) + eps", _HC, "TC",
                                (f"{hc}_scale", f"{hc}_base")),
        f"{hc}_pre_post_weights": Op((f"{hc}_pre_mixes",), "post = 2 sigmoid(m scale1 + base)", _HC, "TC",
                                     (f"{hc}_scale", f"{hc}_base")),
        f"{hc}_pre_comb": Op((f"{hc}_pre_mixes",), "comb = Sinkhorn(m scale2 + base)", _HC, "TKC",
                             (f"{hc}_scale", f"{hc}_base")),
        f"{hc}_pre": Op((f"{hc}_in", f"{hc}_pre_weights"), "h = sum_i pre_i X_i", _HC, "TF"),
        f"{hc}_post": Op((f"{hc}_in", out, f"{hc}_pre_post_weights", f"{hc}_pre_comb"),
                         "X'_k = post_k y + sum_j comb[j][k] X_j", _HC, "TCF"),
    }  # fmt: skip


def _compressor(prefix: str, tensors: str, row: str, rounding: str) -> dict[str, Op]:
    p = f"{prefix}_comp"
    return {
        f"{p}_kv_raw": Op(("attn_norm",), "k = W_kv x", _COMPRESSOR, "TF", (f"{tensors}_kv",)),
        f"{p}_gate_raw": Op(("attn_norm",), "W_gate x", _COMPRESSOR, "TF", (f"{tensors}_gate",)),
        f"{p}_score_raw": Op((f"{p}_gate_raw",), "g = W_gate x + ape[t mod ratio]", _COMPRESSOR, "TF",
                             (f"{tensors}_ape",)),
        f"{p}_candidates": Op((f"{p}_kv_raw", f"{p}_score_raw"), "candidates of the windows that close", _COMPRESSOR,
                              "NWF", (), (f"{p}_kv_raw", f"{p}_score_raw")),
        f"{p}_rope_tables": Op((), "cos, sin at w * ratio", _POSITIONS, "NF"),
        row: Op((f"{p}_candidates", f"{p}_rope_tables"), f"{rounding}(rope(rms(sum_j softmax_j(g) k), w ratio))",
                _COMPRESSOR, "NF", (f"{tensors}_norm",)),
    }  # fmt: skip


OPS: dict[str, Op] = {
    **_mixing("attn", BEFORE + "hc_ffn_post"),
    "attn_norm": Op(("hc_attn_pre",), "x = rms(h; attn_norm)", _ATTENTION, "TF", ("attn_norm",)),
    "rope_tables": Op((), "cos, sin of position f_i", _POSITIONS, "TF"),
    "q_lora": Op(("attn_norm",), "attn_q_a x", _ATTENTION, "TF", ("attn_q_a",)),
    "q_lora_norm": Op(("q_lora",), "u = rms(attn_q_a x; attn_q_a_norm)", _ATTENTION, "TF", ("attn_q_a_norm",)),
    "Qraw": Op(("q_lora_norm",), "q = attn_q_b u", _ATTENTION, "THF", ("attn_q_b",)),
    "Qnorm": Op(("Qraw",), "rms(q_h), no learned weight", _ATTENTION, "THF"),
    "Qcur": Op(("Qnorm", "rope_tables"), "q_h = rope(rms(q_h), t)", _POSITIONS, "THF"),
    "KVraw": Op(("attn_norm",), "attn_kv x", _ATTENTION, "TF", ("attn_kv",)),
    "KVnorm": Op(("KVraw",), "rms(attn_kv x; attn_kv_a_norm)", _ATTENTION, "TF", ("attn_kv_a_norm",)),
    "KVrope": Op(("KVnorm", "rope_tables"), "rope(rms(attn_kv x), t)", _POSITIONS, "TF"),
    "KVcur": Op(("KVrope",), "f16(e4m3(kv)) where the mode rounds", _ROUNDING, "TF"),
    "raw_window": Op((), "positions max(0, t - W + 1) to t", _ATTENTION, "T"),
    **_compressor("attn", "attn_compressor", "KVcompress", "f16(e4m3"),
    "comp_count": Op((), "rows c < (t + 1) // ratio", _COMPRESSOR, "T"),
    **_compressor("indexer", "indexer_compressor", "indexer_KVcompress", "f16(e2m1(hadamard"),
    "indexer_q": Op(("q_lora_norm", "rope_tables"), "iq = e2m1(hadamard(rope(indexer.attn_q_b u, t)))", _INDEXER,
                    "THF", ("indexer.attn_q_b",)),
    "indexer_weights": Op(("attn_norm",), "w = (indexer.proj x) / sqrt(di Hi)", _INDEXER, "TH", ("indexer.proj",)),
    "indexer_rows": Op(("indexer_KVcompress",), "rows so far", _INDEXER, "NF", (), ("indexer_KVcompress",)),
    "indexer_scores": Op(("indexer_q", "indexer_rows", "indexer_weights"), "score_c = sum_h max(0, iq_h ik_c) w_h",
                         _INDEXER, "TR"),
    "indexer_topk": Op(("indexer_scores",), "the k rows of greatest score", _INDEXER, "TR"),
    "attn_sinks": Op((), "z_h = attn_sinks[h]", _ATTENTION, "H", ("attn_sinks",)),
    "kqv_out": Op(("Qcur", "KVcur", "raw_window", "KVcompress", "comp_count", "indexer_topk", "attn_sinks"),
                  "o_h = sum_r e^s_r r / (e^z_h + sum_r e^s_r)", _ATTENTION, "THF", (), ("KVcur", "KVcompress")),
    "kqv_back": Op(("kqv_out", "rope_tables"), "o_h = rope(o_h, -t)", _ATTENTION, "THF"),
    "attn_low": Op(("kqv_back",), "low_g = attn_output_a[g] concat(o of group g)", _ATTENTION, "TF",
                   ("attn_output_a",)),
    "attn_out": Op(("attn_low",), "y = attn_output_b concat(low)", _ATTENTION, "TF", ("attn_output_b",)),
    **_mixing("ffn", "hc_attn_post"),
    "ffn_norm": Op(("hc_ffn_pre",), "x = rms(h; ffn_norm)", _EXPERTS, "TF", ("ffn_norm",)),
    "ffn_moe_logits": Op(("ffn_norm",), "ffn_gate_inp x", _EXPERTS, "TE", ("ffn_gate_inp",)),
    "ffn_moe_probs": Op(("ffn_moe_logits",), "p = sqrt(softplus(logits))", _EXPERTS, "TE"),
    "ffn_moe_topk": Op(("ffn_moe_probs",), "the K greatest of p + bias; hash layers: by token id", _EXPERTS, "TS",
                       ("exp_probs_b", "ffn_gate_tid2eid")),
    "ffn_moe_weights_scaled": Op(("ffn_moe_probs", "ffn_moe_topk"), "w_i = scale p_i / sum_j p_j", _EXPERTS, "TS"),
    "ffn_shexp_gate": Op(("ffn_norm",), "G x", _EXPERTS, "TF", ("ffn_gate_shexp",)),
    "ffn_shexp_up": Op(("ffn_norm",), "U x", _EXPERTS, "TF", ("ffn_up_shexp",)),
    "ffn_shexp_mid": Op(("ffn_shexp_gate", "ffn_shexp_up"), "silu(min(gate, limit)) clip(up, -limit, limit)",
                        _EXPERTS, "TF"),
    "ffn_shexp": Op(("ffn_shexp_mid",), "D mid", _EXPERTS, "TF", ("ffn_down_shexp",)),
    "ffn_moe_gate": Op(("ffn_norm", "ffn_moe_topk"), "G_e x", _EXPERTS, "TSF", ("ffn_gate_exps",)),
    "ffn_moe_up": Op(("ffn_norm", "ffn_moe_topk"), "U_e x", _EXPERTS, "TSF", ("ffn_up_exps",)),
    "ffn_moe_weighted_swiglu": Op(("ffn_moe_gate", "ffn_moe_up", "ffn_moe_weights_scaled"),
                                  "w_i silu(min(gate, limit)) clip(up, -limit, limit)", _EXPERTS, "TSF"),
    "ffn_moe_out": Op(("ffn_moe_weighted_swiglu", "ffn_moe_topk"), "sum_i D_e (w_i mid_i)", _EXPERTS, "TF",
                      ("ffn_down_exps",)),
    "ffn_out": Op(("ffn_moe_out", "ffn_shexp"), "routed + shared", _EXPERTS, "TF"),
    "result_hc_pre": Op((BEFORE + "hc_ffn_post",), "m = output_hc_fn rms(X flattened)", _HEAD, "TC",
                        ("output_hc_fn",)),
    "result_hc_weights": Op(("result_hc_pre",), "a = sigmoid(m scale + base) + eps", _HEAD, "TC",
                            ("output_hc_scale", "output_hc_base")),
    "result_hc": Op((BEFORE + "hc_ffn_post", "result_hc_weights"), "sum_i a_i X_i", _HEAD, "TF"),
    "result_norm": Op(("result_hc",), "v = rms(sum_i a_i X_i; output_norm)", _HEAD, "TF", ("output_norm",)),
    "result_output": Op(("result_norm",), "logits = output v", _HEAD, "TF", ("output",)),
}  # fmt: skip
"""Every point of the pass by name, in the order in which a layer reaches them."""

HEAD_POINTS = frozenset(name for name in OPS if name.startswith("result_"))
CHOICES = {"ffn_moe_topk": "experts", "indexer_topk": "rows"}
"""Points that hold ids; they are compared as sets, and a different choice between near ties is no mistake."""

STORED = {"KVcur", "KVcompress", "indexer_KVcompress"}
"""Points that are stored in the KV cache; an engine may dump them before or after rounding them to the cache format."""

Key = tuple[str, int]
"""Point and layer; the layer of the head's points is -1."""


def upstream(key: Key, n_layers: int) -> list[Key]:
    """Return the points that ``key`` is directly computed from."""
    name, layer = key
    keys = []
    for source in OPS[name].inputs:
        if not source.startswith(BEFORE):
            keys.append((source, layer))
        elif layer != 0:
            keys.append((source[len(BEFORE) :], (n_layers if name in HEAD_POINTS else layer) - 1))
    return keys


def span(
    key: Key, dumped: Collection[Key], n_layers: int, reached: Collection[Key] | None = None
) -> tuple[list[Key], list[Key]]:
    """Return (nearest dumped points upstream of ``key``, undumped points between them and ``key``, with ``key``).

    Both are in the order of the pass. ``reached``: points that the pass has, as kinds of layers differ (None: all).
    """
    start: set[Key] = set()
    bridged: set[Key] = {key}
    waiting = [key]
    while waiting:
        for source in upstream(waiting.pop(), n_layers):
            if reached is not None and source not in reached:
                continue
            if source in dumped:
                start.add(source)
            elif source not in bridged:
                bridged.add(source)
                waiting.append(source)
    return ordered(start, n_layers), ordered(bridged, n_layers)


def ordered(keys: Collection[Key], n_layers: int) -> list[Key]:
    """Sort keys in the order of the pass."""
    rank = {name: i for i, name in enumerate(OPS)}
    return sorted(keys, key=lambda key: (n_layers if key[1] < 0 else key[1], rank[key[0]]))


def anchor(section: str) -> str:
    """Return the link to a heading of docs/explanation/model.md, with GitHub's form of the anchor."""
    slug = "".join(c for c in section.lower() if c.isalnum() or c in " -")
    return "docs/explanation/model.md#" + slug.replace(" ", "-")


def describe_point(key: Key) -> str:
    """Return a point's name for the report: "Qcur of layer 3"."""
    name, layer = key
    return f"{name} of the head" if layer < 0 else f"{name} of layer {layer}"
