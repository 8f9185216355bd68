"""Changes of the pass that no name stands for: at every place, whatever an engineer may have got wrong there.

``changes(model)`` yields them for every intermediate and layer: parts that are zero or exchanged, the value of another
token, coarse storage, a product whose input or tensor is wrong, and variants of formulas (``edits_formulas``). They say
*where* a mistake is; mistakes known by name are in ``library``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..archs.deepseek4.chunk import HEAD
from ..archs.deepseek4.forward import Base
from ..archs.deepseek4.hooks import LATER
from .edits_formulas import FEW, Alter, at_head, each, formulas, permuted, swaps, without
from .faults import Edit
from .replay import Change
from .rounding import float_bits, round_bf16

AXES = {
    "hc_attn_in": "TCF", "hc_attn_pre_mixes": "TF", "hc_attn_pre_weights": "TC", "hc_attn_pre_post_weights": "TC",
    "attn_norm": "TF", "q_lora_norm": "TF", "Qcur": "THF", "KVcur": "TF", "attn_comp_kv_raw": "TF",
    "attn_comp_gate_raw": "TF", "KVcompress": "NF", "indexer_comp_kv_raw": "TF", "indexer_comp_gate_raw": "TF",
    "indexer_KVcompress": "NF", "indexer_q": "THF", "indexer_weights": "TH", "kqv_back": "THF", "attn_low": "TF",
    "attn_out": "TF", "hc_ffn_in": "TCF", "hc_ffn_pre_mixes": "TF", "hc_ffn_pre_weights": "TC",
    "hc_ffn_pre_post_weights": "TC", "ffn_norm": "TF", "ffn_moe_logits": "TE", "ffn_moe_weights_scaled": "TS",
    "ffn_moe_gate": "TSF", "ffn_moe_up": "TSF", "ffn_moe_weighted_swiglu": "TSF", "ffn_moe_out": "TF",
    "ffn_shexp_gate": "TF", "ffn_shexp_up": "TF", "ffn_shexp_mid": "TF", "ffn_shexp": "TF", "ffn_out": "TF",
    "result_hc_pre": "TC", "result_hc_weights": "TC", "result_norm": "TF", "result_output": "TF",
    "hc_attn_read": "TC", "hc_ffn_read": "TC", "result_hc_read": "TC", "attn_comp_norm": "NF", "engram_rows": "TF",
    "engram_kv": "TF", "engram_in": "TCF", "engram_out": "TCF",
}  # fmt: skip
"""Intermediates whose values are changed as they are: T token, N cache row, H head, S chosen expert, E expert, C
residual stream, F channel."""
UNITS = {"H": "head", "S": "chosen expert", "E": "expert", "C": "stream"}
PARTS, SMALLEST = 4, 64
"""Number of parts into which channels are divided: a shard of a matrix, a group of a tensor-parallel engine. Parts are
divided again (``finer``) up to this number."""
MOVED: dict[str, Alter] = {
    "of the row before": lambda v: np.concatenate((v[:1], v[:-1])),
    "of the row after": lambda v: np.concatenate((v[1:], v[-1:])),
}


def changes(model: Base) -> Iterator[Change]:
    """Yield every change, in each layer alone."""
    for layer in range(model.shape.n_layers):
        for name, axes in AXES.items():
            if reached(model, layer, name) and not name.startswith("result"):
                yield from (replace(change, layer=layer) for change in _values(model, name, axes))
        yield from _tensors(model, layer)
        for op, says, edits in formulas(model, layer):
            if all(reached(model, layer, name) for name in (op, *edits)):
                yield Change(op, layer, says, edits)
    for name, axes in AXES.items():
        if name.startswith("result") and reached(model, HEAD, name):
            yield from _values(model, name, axes)
    yield from (Change(op, HEAD, says, edits) for op, says, edits in at_head(model) if reached(model, HEAD, op))


def everywhere(change: Change) -> Change:
    """Return the same change in every layer that has the place."""
    return replace(change, layer=None)


def finer(change: Change) -> Iterator[Change]:
    """Yield the changes of a quarter of a change's part each, and of the half that it is in; none if it has no part."""
    axis, i, n = change.part or (0, 0, 1)
    halves = [(i // 2, n // 2)] if n == PARTS else []
    quarters = [(j, PARTS * n) for j in range(PARTS * i, PARTS * (i + 1))] if 1 < n < SMALLEST else []
    for j, of in halves + quarters:
        zero, says = without(axis, j, of), change.says.replace(f"part {i} of {n}", f"part {j} of {of}")
        where = {"inputs": ((change.inputs[0][0], zero),)} if change.inputs else {"edits": {change.op: each(zero)}}
        yield replace(change, says=says, share=1.0, part=(axis, j, of), **where)


COMPRESSED = ("attn_comp", "KVcomp", "indexer_KV", "indexer_comp")
"""Beginnings of the names of what compressors make."""


def reached(model: Any, layer: int, name: str) -> bool:
    """Return whether a layer (``HEAD``: the output head) has the intermediate."""
    s = model.shape
    ratio = s.ratios[layer] if layer != HEAD else 0
    if not hasattr(s, "kv_sources"):
        if name in LATER:
            return False
        return ratio == 4 if name.startswith("indexer") else bool(ratio) or not name.startswith((*COMPRESSED, "comp_c"))
    if name in ("Qnorm", "result_hc_pre", "result_hc_weights") or name.endswith("score_raw"):
        return False
    if name in ("attn_comp_gate_raw", "attn_comp_candidates"):
        return layer in s.kv_sources and ratio > 1
    if name.startswith(COMPRESSED):
        return layer in s.kv_sources and not name.startswith("indexer_comp")
    if name.startswith(("indexer", "candidates")):
        return layer in s.index_sources
    return layer in s.engram_layers if name.startswith("engram") else bool(ratio) or name != "comp_count"


# ---- values: parts zero, exchanged, of another token, stored coarsely


def _sizes(model: Base, name: str) -> dict[str, int]:
    s = model.shape
    heads = s.index_heads if name.startswith("indexer") else s.n_heads
    return {"H": heads, "S": s.n_used, "E": s.n_experts, "C": s.hc}


def _values(model: Base, name: str, axes: str) -> Iterator[Change]:
    """Yield changes of an intermediate with these axes, as ones of the output head."""
    for axis, unit in enumerate(axes):
        if unit == "F":
            for i in range(PARTS):
                says = f"part {i} of {PARTS} of the channels is zero"
                yield Change(name, HEAD, says, {name: each(without(axis, i, PARTS))}, part=(axis, i, PARTS))
    for says, edit in _edits(axes, _sizes(model, name)):
        yield Change(name, HEAD, says, {name: edit})


def _edits(axes: str, sizes: dict[str, int]) -> Iterator[tuple[str, Edit]]:
    """Yield (what is changed, edit) of an intermediate with these axes."""
    yield "zero", each(lambda v: 0 * v)
    for says, factor in (("a tenth larger", 1.1), ("a fifth smaller", 0.8)):
        yield says, each(lambda v, f: v * f, np.float32(factor))
    for name, rounded in ROUNDED.items():
        yield f"stored as {name}", each(rounded)
    for axis, unit in enumerate(axes):
        if unit in UNITS and sizes[unit] > 1:
            n = sizes[unit]
            for i in range(n if n <= FEW else 0):
                yield f"{UNITS[unit]} {i} is zero", each(without(axis, i, n))
            for i, j, order in swaps(n):
                yield f"{UNITS[unit]}s {i} and {j} are exchanged", each(permuted(axis, order))
            if n > 2:
                yield f"{UNITS[unit]}s are in reverse", each(permuted(axis, np.arange(n)[::-1]))
                for by in (1, -1):
                    yield f"{UNITS[unit]}s are moved by {by}", each(permuted(axis, np.roll(np.arange(n), by)))
        elif unit == "F":
            yield "halves of the channels exchanged", each(lambda v, a: np.roll(v, v.shape[a] // 2, a), axis)
            yield "even and odd channels apart", each(lambda v: np.concatenate((v[..., ::2], v[..., 1::2]), -1))
        elif unit in "TN":
            for says, moved in MOVED.items():
                yield says, each(moved)


def _by_row(quantize: Alter, top: float) -> Alter:
    def alter(x: np.ndarray) -> np.ndarray:
        scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True), 1e-30) / top
        return quantize(x / scale) * scale

    return alter


ROUNDED: dict[str, Alter] = {
    "bfloat16": round_bf16, "E4M3": lambda x: float_bits(x, 3, -6, 448),
    "int8 with a scale by row": _by_row(np.rint, 127),
}  # fmt: skip


# ---- tensors: another one, or one product alone with another input

TENSORS = {
    **{f"hc_{half}_{name}": f"hc_{half}_pre_mixes" for half in ("attn", "ffn") for name in ("fn", "scale", "base")},
    "attn_norm": "attn_norm", "attn_q_a": "q_lora", "attn_q_a_norm": "q_lora_norm", "attn_q_b": "Qraw",
    "attn_kv": "KVraw", "attn_kv_a_norm": "KVnorm", "attn_sinks": "attn_sinks", "attn_output_a": "attn_low",
    "attn_output_b": "attn_out", "attn_compressor_kv": "attn_comp_kv_raw",
    "attn_compressor_gate": "attn_comp_gate_raw", "attn_compressor_ape": "attn_comp_score_raw",
    "attn_compressor_norm": "KVcompress", "indexer_compressor_kv": "indexer_comp_kv_raw",
    "indexer_compressor_gate": "indexer_comp_gate_raw", "indexer_compressor_ape": "indexer_comp_score_raw",
    "indexer_compressor_norm": "indexer_KVcompress", "indexer_attn_q_b": "indexer_q",
    "indexer_proj": "indexer_weights", "ffn_norm": "ffn_norm", "ffn_gate_inp": "ffn_moe_logits",
    "exp_probs_b": "ffn_moe_topk", "ffn_gate_tid2eid": "ffn_moe_topk", "ffn_gate_exps": "ffn_moe_gate",
    "ffn_up_exps": "ffn_moe_up", "ffn_down_exps": "ffn_moe_out", "ffn_gate_shexp": "ffn_shexp_gate",
    "ffn_up_shexp": "ffn_shexp_up", "ffn_down_shexp": "ffn_shexp", "indexer_attn_k": "indexer_KVcompress",
    "indexer_k_norm": "indexer_KVcompress", "engram_kv": "engram_kv", "engram_gate": "engram_out",
}  # fmt: skip
"""The intermediate that a tensor of a layer makes."""
SIBLINGS = {"attn_norm": "ffn_norm", "hc_attn_fn": "hc_ffn_fn", "hc_attn_scale": "hc_ffn_scale",
            "hc_attn_base": "hc_ffn_base", "attn_kv_a_norm": "attn_compressor_norm",
            "ffn_gate_exps": "ffn_up_exps", "ffn_gate_shexp": "ffn_up_shexp"}  # fmt: skip
_ONES: dict[str, Alter] = {"left out": np.ones_like, "one higher": lambda v: v + 1}
_ZERO: dict[str, Alter] = {"left out": np.zeros_like, "moved by one": lambda v: np.ascontiguousarray(np.roll(v, 1, 0))}
VECTORS = {"norm": _ONES, "gate": _ONES, "scale": _ONES, "base": _ZERO, "ape": _ZERO, "sinks": _ZERO, "b": _ZERO}
"""What is changed in a vector of weights, by the last word of its name."""


def _shape_of(tensor: Any) -> Any:
    return (tensor.rows, tensor.cols, tensor.experts) if hasattr(tensor, "rows") else np.shape(tensor)


def _tensors(model: Base, layer: int) -> Iterator[Change]:
    """Yield changes of every tensor of a layer: that of another layer or of a sibling, left out, parts of its input
    missing."""
    own, both = model.weights.layers[layer], {**SIBLINGS, **{b: a for a, b in SIBLINGS.items()}}
    for name, op in TENSORS.items():
        tensor = getattr(own, name, None)
        if tensor is None:
            continue
        others = {f"{name} of layer {j}": getattr(other, name) for j, other in enumerate(model.weights.layers)
                  if j != layer}  # fmt: skip
        if name in both:
            others[f"{both[name]} for {name}"] = getattr(own, both[name])
        for says, other in others.items():
            if other is not None and _shape_of(other) == _shape_of(tensor):
                yield Change(op, layer, f"with {says}", weights={name: other})
        if not hasattr(tensor, "rows"):
            for says, alter in VECTORS.get(name.rpartition("_")[2], {}).items():
                yield Change(op, layer, f"{name} {says}", weights={name: alter(tensor)})
            continue
        for by in range(1, tensor.experts if tensor.nbytes < MOST else 0):
            moved = replace(tensor, data=np.roll(tensor.data, by, 0))
            yield Change(op, layer, f"{name} of the expert {by} before", weights={name: moved})
        if not name.startswith("hc"):
            for i in range(PARTS):
                says = f"part {i} of {PARTS} of the input of {name} is zero"
                yield Change(op, layer, says, inputs=((tensor, without(-1, i, PARTS)),), part=(-1, i, PARTS))
            for says, alter in MOVED.items():
                yield Change(op, layer, f"the input of {name} {says}", inputs=((tensor, alter),))


MOST = 1 << 25
"""Bytes up to which matrices are copied in another order of experts."""
