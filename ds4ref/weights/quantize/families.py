"""Families of tensors (such as all gate matrices of experts), and the storage format that a recipe assigns to each.

A tensor's family is determined by its whole name: ``blk.3.ffn_gate_exps.weight_bias`` is not an expert matrix. Families
are those of ds4's quantizer, and ``ffn`` for the feed-forward matrices of models without routed experts.

    family_of("blk.3.ffn_gate_exps.weight", rank=3)  ->  "gate"
    RECIPES["q2"].wanted("gate", layer=3, layers=43)  ->  "IQ2_XXS"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FAMILIES = {
    "gate": "routed experts, gate (w1)",
    "down": "routed experts, down (w2)",
    "up": "routed experts, up (w3)",
    "shared": "shared experts",
    "attention-proj": "attention projections",
    "attention": "other matrices of the attention: compressors, indexer",
    "ffn": "feed-forward matrices of layers without experts",
    "embedding": "token embedding",
    "output": "output matrix",
    "dense": "all other matrices: router, hyper-connections",
    "vector": "norms, biases, sinks: anything of rank 1",
    "table": "integers",
}
EXPERTS = ("gate", "up", "down")

_LAYER = re.compile(r"(?:blk|mtp)\.([0-9]{1,6})\.(.+)\.(?:weight|bias)")
_EXPERT = re.compile(r"ffn_(gate|down|up)_exps")
_PROJECTIONS = {
    *("attn_kv", "attn_q_a", "attn_q_b", "attn_output_a", "attn_output_b"),
    *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"),
    *("e_proj", "h_proj"),  # projections of the two inputs of multi-token prediction
}


def layer_of(name: str) -> int | None:
    """Return the layer number in a tensor's name; None for a tensor that does not belong to a layer."""
    match = _LAYER.fullmatch(name)
    return int(match[1]) if match else None


def family_of(name: str, rank: int, integers: bool = False) -> str:
    """Return the family of a tensor, a key of ``FAMILIES``.

    rank: number of dimensions; integers: whether it holds integers instead of weights.
    """
    if integers:
        return "table"
    if rank <= 1:
        return "vector"
    if name in ("token_embd.weight", "output.weight"):
        return "embedding" if name.startswith("token") else "output"
    match = _LAYER.fullmatch(name)
    if match is None:
        return "dense"
    role = match[2]
    if expert := _EXPERT.fullmatch(role):
        return expert[1]
    if re.fullmatch(r"ffn_(gate|down|up)_shexp", role):
        return "shared"
    if role in _PROJECTIONS:
        return "attention-proj"
    if role.startswith(("attn_", "indexer.", "indexer_")):
        return "attention"
    return "ffn" if role in ("ffn_gate", "ffn_up", "ffn_down") else "dense"


@dataclass(frozen=True)
class Recipe:
    """Which storage format each family of tensors gets.

    says      one-line description
    formats   family -> format
    upgraded  number of layers, at the end of the model, to which ``last`` applies
    last      family -> format that replaces the one of ``formats`` in these layers
    """

    says: str
    formats: Mapping[str, str]
    upgraded: int = 0
    last: Mapping[str, str] = field(default_factory=dict)

    def wanted(self, family: str, layer: int | None, layers: int) -> str | None:
        """Return the format of a tensor of ``family`` in ``layer`` of ``layers``; None: leave the tensor unchanged."""
        if layer is not None and layer >= layers - self.upgraded and family in self.last:
            return self.last[family]
        return self.formats.get(family)


_COMMON = {
    "shared": "Q8_0",
    "attention-proj": "Q8_0",
    "attention": "F16",
    "embedding": "F16",
    "output": "Q8_0",
    "dense": "F16",
    "vector": "F32",
    "table": "I32",
}


def _all(fmt: str) -> dict[str, str]:
    return {**dict.fromkeys(FAMILIES, fmt), "vector": "F32", "table": "I32"}


_Q4 = {"gate": "Q4_K", "up": "Q4_K", "down": "Q4_K", "ffn": "Q4_K"}
_Q2 = {"gate": "IQ2_XXS", "up": "IQ2_XXS", "down": "Q2_K", "ffn": "Q2_K"}


RECIPES = {
    "q2": Recipe("experts IQ2_XXS (gate, up) and Q2_K (down), 2.3 bits a weight", _COMMON | _Q2),
    "q4": Recipe("experts Q4_K, 4.5 bits a weight", _COMMON | _Q4),
    "mixed": Recipe("as q2, the last six layers as q4", _COMMON | _Q2, 6, _Q4),
    "q8": Recipe("experts and projections Q8_0", _COMMON | dict.fromkeys(_Q4, "Q8_0")),
    "f16": Recipe("every matrix F16", _all("F16")),
    "bf16": Recipe("every matrix BF16", _all("BF16")),
    "f32": Recipe("everything F32", _all("F32")),
}
