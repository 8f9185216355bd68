"""The list of tensors of a model of given dimensions: used alike for loading files, writing them and counting bytes.

``slots(shape)`` lists every tensor with its dimensions, the storage formats that it may have, and the component of the
model that it belongs to (docs/explanation/model.md 2.2, 13). ``expected_tensors(shape, recipe)`` picks one format for
each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ds4ref.kernels.formats import FORMATS

from ...errors import ModelFileError
from ...weights.container import TensorSpec
from ..binding import Slot
from .shape import CSA, PLAIN

if TYPE_CHECKING:
    from .dimensions import Dimensions
    from .shape import ModelShape


def _matrix(*published: str) -> tuple[str, ...]:
    """Return all storage formats that matrix products support, the ``published`` ones first."""
    return (*published, *(fmt.name for fmt in FORMATS.values() if fmt.multiplies and fmt.name not in published))


# Storage formats that kinds of tensors may have, each named after the one in ds4's published GGUF files, which comes
# first; other files may use the others. Vectors and mixing matrices (MIX) are not quantized.
F32, I32 = ("F32", "F16", "BF16"), ("I32",)
MIX = ("F16", "F32", "BF16")
F16, Q8_0 = _matrix(*MIX), _matrix("Q8_0")
EXPERT_FORMATS = ("IQ2_XXS", "Q2_K", "Q4_K")
EXPERTS = _matrix(*EXPERT_FORMATS)

MTP = "mtp.0."
"""Prefix of the tensors of the block for multi-token prediction."""

# Components of the model under which bytes are counted, and their names in reports.
PARTS = {
    "attn_out": "attention output a + b",
    "experts": "routed experts",
    "attn_in": "attention q_a, q_b, kv",
    "shared": "shared expert",
    "compressor": "compressors (attention + indexer)",
    "lm_head": "lm_head",
    "indexer": "indexer q_b + proj",
    "router": "router",
    "hc": "hyper-connections",
    "embedding": "embedding",
    "hash": "hash routing tables",
    "rest": "norms, sinks, head hyper-connection",
}


def slots(shape: ModelShape) -> list[Slot]:
    """Return a slot for every tensor of a model of this shape, in file order."""
    return [*_model_slots(shape), *(slot for layer in range(shape.n_layers) for slot in _layer_slots(shape, layer))]


def mtp_slots(shape: ModelShape) -> list[Slot]:
    """Return a slot for every tensor of the block for multi-token prediction: projections of its two inputs, a layer
    without compression whose experts are chosen by score, and a head of its own.
    """
    streams, dim = shape.hc * shape.dim, shape.dim
    own: list[tuple[str, tuple[int, ...], tuple[str, ...], str]] = [
        *((name, (dim, dim), Q8_0, "attn_in") for name in ("e_proj", "h_proj")),
        *((name, (dim,), F32, "rest") for name in ("enorm", "hnorm", "norm")),
        ("hc_head_fn", (streams, shape.hc), MIX, "rest"),
        ("hc_head_base", (shape.hc,), F32, "rest"),
        ("hc_head_scale", (1,), F32, "rest"),
    ]
    return [
        *(Slot(f"{MTP}{name}.weight", name, dims, fmts, part, 0) for name, dims, fmts, part in own),
        *stage_slots(shape, MTP, 0),
    ]


def stage_slots(shape: ModelShape, prefix: str, layer: int) -> list[Slot]:
    """Return the slots of a layer of a drafter: without compression, experts chosen by score.

    prefix: what replaces "blk.0." in the tensors' names; layer: the number that the slots get.
    """
    one = replace(shape, n_layers=1, n_hash_layers=0, ratios=(PLAIN,), swiglu_limit=shape.swiglu_limit[:1])
    named = ((slot, prefix + slot.name.removeprefix("blk.0.")) for slot in _layer_slots(one, 0))
    return [replace(slot, name=name, layer=layer, optional=False) for slot, name in named]


def is_dspark(names: Collection[str]) -> bool:
    """Return whether the tensor ``names`` of a file are those of a DSpark drafter, in any of its layouts."""
    return any("markov_" in name or name.endswith("main_proj.weight") for name in names)


def check_drafter(path: str | os.PathLike[str], names: Collection[str]) -> None:
    """Raise ModelFileError if the tensor ``names`` of a file show a block for multi-token prediction in llama.cpp's
    layout."""
    if any(".nextn." in name for name in names):
        what = "its block for multi-token prediction is laid out as llama.cpp does (nextn.*), which is not read"
        raise ModelFileError(path, f"{what}: make one of the published folder by ds4-quantize FOLDER --mtp-block")


def _model_slots(s: ModelShape) -> Iterator[Slot]:
    streams = s.hc * s.dim
    yield Slot("token_embd.weight", "token_embd", (s.dim, s.vocab), F16, "embedding")
    yield Slot("output_hc_base.weight", "output_hc_base", (s.hc,), F32, "rest")
    yield Slot("output_hc_fn.weight", "output_hc_fn", (streams, s.hc), MIX, "rest")
    yield Slot("output_hc_scale.weight", "output_hc_scale", (1,), F32, "rest")
    yield Slot("output_norm.weight", "output_norm", (s.dim,), F32, "rest")
    yield Slot("output.weight", "output", (s.dim, s.vocab), Q8_0, "lm_head")


def maker(layer: int) -> Callable[..., Slot]:
    """Return a function that makes a slot of ``layer`` from the part of its name after the layer's, and the fields of
    ``Slot`` from ``dims`` on."""

    def slot(suffix: str, dims: tuple[int, ...], fmts: tuple[str, ...], part: str, optional: bool = False) -> Slot:
        attr = suffix.rpartition(".")[0].replace(".", "_")
        return Slot(f"blk.{layer}.{suffix}", attr, dims, fmts, part, layer, optional)

    return slot


def _layer_slots(s: ModelShape, layer: int) -> Iterator[Slot]:
    slot, ratio, width = maker(layer), s.ratios[layer], s.comp_width(layer)
    yield from attention_slots(s, layer)
    if ratio:
        yield slot("attn_compressor_kv.weight", (s.dim, width), F16, "compressor")
        yield slot("attn_compressor_gate.weight", (s.dim, width), F16, "compressor")
        yield slot("attn_compressor_ape.weight", (width, ratio), MIX, "compressor")
        yield slot("attn_compressor_norm.weight", (s.head_dim,), F32, "compressor")
    if ratio == CSA:
        index = 2 * s.index_dim
        yield from indexer_slots(s, layer)
        yield slot("indexer_compressor_kv.weight", (s.dim, index), F16, "compressor")
        yield slot("indexer_compressor_gate.weight", (s.dim, index), F16, "compressor")
        yield slot("indexer_compressor_ape.weight", (index, ratio), MIX, "compressor")
        yield slot("indexer_compressor_norm.weight", (s.index_dim,), F32, "compressor")
    yield from ffn_slots(s, layer)


def _mixing_slots(s: Dimensions, layer: int, half: str) -> Iterator[Slot]:
    slot = maker(layer)
    yield slot(f"hc_{half}_fn.weight", (s.hc * s.dim, s.mix), MIX, "hc")
    yield slot(f"hc_{half}_scale.weight", (3,), F32, "hc")
    yield slot(f"hc_{half}_base.weight", (s.mix,), F32, "hc")
    yield slot(f"{half}_norm.weight", (s.dim,), F32, "rest")


def attention_slots(s: Dimensions, layer: int) -> Iterator[Slot]:
    """Yield the slots of a layer's attention without compressor and indexer, in file order."""
    slot, heads, groups = maker(layer), s.n_heads * s.head_dim, s.o_groups * s.o_rank
    yield from _mixing_slots(s, layer, "attn")
    yield slot("attn_q_a.weight", (s.dim, s.q_rank), Q8_0, "attn_in")
    yield slot("attn_q_a_norm.weight", (s.q_rank,), F32, "attn_in")
    yield slot("attn_q_b.weight", (s.q_rank, heads), Q8_0, "attn_in")
    yield slot("attn_kv.weight", (s.dim, s.head_dim), Q8_0, "attn_in")
    yield slot("attn_kv_a_norm.weight", (s.head_dim,), F32, "attn_in")
    yield slot("attn_sinks.weight", (s.n_heads,), F32, "rest")
    yield slot("attn_output_a.weight", (heads // s.o_groups, groups), Q8_0, "attn_out")
    yield slot("attn_output_b.weight", (groups, s.dim), Q8_0, "attn_out")


def indexer_slots(s: Dimensions, layer: int) -> Iterator[Slot]:
    """Yield the slots of an indexer's queries."""
    slot = maker(layer)
    yield slot("indexer.attn_q_b.weight", (s.q_rank, s.index_heads * s.index_dim), F16, "indexer")
    yield slot("indexer.proj.weight", (s.dim, s.index_heads), F16, "indexer")


def ffn_slots(s: Dimensions, layer: int, router: tuple[str, ...] = F16, biased: bool = False) -> Iterator[Slot]:
    """Yield the slots of a layer's experts, in file order.

    router: storage formats of its matrix; biased: whether a file must have the bias
    """
    slot, ff, shared = maker(layer), s.expert_ff, s.expert_ff * s.n_shared
    yield from _mixing_slots(s, layer, "ffn")
    yield slot("ffn_gate_inp.weight", (s.dim, s.n_experts), router, "router")
    yield slot("exp_probs_b.bias", (s.n_experts,), F32, "router", optional=not biased)
    if layer < s.n_hash_layers:
        yield slot("ffn_gate_tid2eid.weight", (s.n_used, s.vocab), I32, "hash")
    yield slot("ffn_gate_exps.weight", (s.dim, ff, s.n_experts), EXPERTS, "experts")
    yield slot("ffn_up_exps.weight", (s.dim, ff, s.n_experts), EXPERTS, "experts")
    yield slot("ffn_down_exps.weight", (ff, s.dim, s.n_experts), EXPERTS, "experts")
    yield slot("ffn_gate_shexp.weight", (s.dim, shared), Q8_0, "shared")
    yield slot("ffn_up_shexp.weight", (s.dim, shared), Q8_0, "shared")
    yield slot("ffn_down_shexp.weight", (shared, s.dim), Q8_0, "shared")


READERS = {
    "attn_norm": (
        *("attn_q_a", "attn_kv", "attn_compressor_kv", "attn_compressor_gate", "indexer.proj"),
        *("indexer_compressor_kv", "indexer_compressor_gate"),
    ),
    "q_lora_norm": ("attn_q_b", "indexer.attn_q_b"),
    "kqv_back": ("attn_output_a",),  # each group of heads has rows of its own, of the same width
    "attn_low": ("attn_output_b",),
    "ffn_norm": ("ffn_gate_inp", "ffn_gate_shexp", "ffn_up_shexp"),
    "ffn_shexp_mid": ("ffn_down_shexp",),
}
"""Intermediate -> matrices that it is the input of, for the importance matrix (``archs.importance``)."""


@dataclass(frozen=True)
class Recipe:
    """Storage formats of the routed experts' matrices in a quantized file: ``gate_up`` and ``down``, but Q4_K for all
    three matrices in the last ``upgraded`` layers."""

    name: str
    gate_up: str
    down: str
    upgraded: int = 0

    def formats(self, layer: int, n_layers: int) -> tuple[str, str]:
        """Return the storage format of the gate and up matrices, and that of the down matrix, in ``layer``."""
        return ("Q4_K", "Q4_K") if layer >= n_layers - self.upgraded else (self.gate_up, self.down)


# The variants that are published (docs/explanation/model.md 2.2). In "mixed" the last six layers (37 to 42) are Q4_K.
RECIPES = {
    "q2": Recipe("q2", "IQ2_XXS", "Q2_K"),
    "q4": Recipe("q4", "Q4_K", "Q4_K"),
    "mixed": Recipe("mixed", "IQ2_XXS", "Q2_K", upgraded=6),
}


def expected_tensors(shape: ModelShape, recipe: Recipe | str = "q2") -> list[TensorSpec]:
    """Return name, format and dimensions of all tensors of a file of this shape and recipe, in file order.

    The selection bias ``exp_probs_b`` is included in layers without hash routing, where it has an effect.
    """
    unused = {f"blk.{layer}.exp_probs_b.bias" for layer in range(shape.n_hash_layers)}
    return specs([slot for slot in slots(shape) if slot.name not in unused], shape.n_layers, recipe)


def specs(wanted: list[Slot], n_layers: int, recipe: Recipe | str) -> list[TensorSpec]:
    """Return name, format and dimensions of the tensors of the slots ``wanted`` in a file of this recipe."""
    recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
    result = []
    for slot in wanted:
        fmt = slot.fmts[0]
        if slot.part == "experts" and slot.layer is not None:
            gate_up, down = recipe.formats(slot.layer, n_layers)
            fmt = down if slot.attr == "ffn_down_exps" else gate_up
        result.append(TensorSpec(slot.name, fmt, slot.dims))
    return result
