"""The list of tensors of a model of given dimensions: used alike for loading files and counting bytes.

``slots(shape)`` lists every tensor with its dimensions, the storage formats that it may have, and the component of the
model that it belongs to. Names are those of ds4's GGUF files; ``published.NAMES`` maps DeepSeek's own names to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ds4ref.kernels.formats import FORMATS

from ...weights.container import TensorSpec
from ..binding import Slot
from ..deepseek4.tensors import F16, F32, Q8_0, Recipe, attention_slots, ffn_slots, indexer_slots, maker, specs
from ..deepseek4.tensors import PARTS as V4_PARTS
from ..deepseek4.tensors import READERS as V4_READERS

if TYPE_CHECKING:
    from .shape import ModelShape

ROW264 = FORMATS["F8_E4M3_ROW264"]
"""What a row of an Engram table is in ds4's files, where the table is a matrix of I8 (``weights.check_tensors``)."""
TABLE = (ROW264.name, "F8_E4M3_32", "F32", "F16", "BF16")
"""Storage formats of Engram's tables: those whose rows can be decoded one at a time."""
ROUTER = ("F32", *(name for name in F16 if name != "F32"))

PARTS = {part: text for part, text in V4_PARTS.items() if part != "hash"} | {
    "compressor": "compressors and index keys",
    "engram": "Engram projections",
    "lookup": "Engram tables",
    "rest": "norms, sinks",
}
"""Components of the model under which bytes are counted, and their names in reports."""

READERS = V4_READERS | {
    "attn_norm": ("attn_q_a", "attn_kv", "attn_compressor_kv", "attn_compressor_gate", "indexer.proj"),
    "attn_comp_norm": ("indexer.attn_k",),
    "engram_rows": ("engram_kv",),
}
"""Intermediate -> matrices that it is the input of, for the importance matrix (``archs.importance``)."""


def slots(shape: ModelShape) -> list[Slot]:
    """Return a slot for every tensor of a model of this shape, in file order."""
    model = [
        Slot("token_embd.weight", "token_embd", (shape.dim, shape.vocab), F16, "embedding"),
        Slot("output_norm.weight", "output_norm", (shape.dim,), F32, "rest"),
        Slot("output.weight", "output", (shape.dim, shape.vocab), Q8_0, "lm_head"),
    ]
    return [*model, *(slot for layer in range(shape.n_layers) for slot in _layer_slots(shape, layer))]


def table_names(shape: ModelShape) -> list[str]:
    """Return the names of Engram's tables."""
    return [f"blk.{layer}.engram_embd.weight" for layer in shape.engram_layers]


def expected_tensors(shape: ModelShape, recipe: Recipe | str = "q2") -> list[TensorSpec]:
    """Return name, format and dimensions of all tensors of ds4's file of this shape and recipe, tables at the end."""
    tables, own, others = table_names(shape), [], []
    for spec in specs(slots(shape), shape.n_layers, recipe):
        if spec.name not in tables:
            others.append(spec)
        elif shape.engram_dim % ROW264.block_elems:
            own.append(spec)
        else:
            own.append(TensorSpec(spec.name, "I8", (ROW264.row_bytes(shape.engram_dim), spec.dims[1])))
    return others + own


def _layer_slots(s: ModelShape, layer: int) -> Iterator[Slot]:
    slot = maker(layer)
    if layer in s.engram_layers:
        rows = s.engram_rows[s.engram_layers.index(layer)]
        yield slot("engram_embd.weight", (s.engram_dim, rows), TABLE, "lookup")
        yield slot("engram_kv.weight", (s.engram_columns * s.engram_dim, (s.hc + 1) * s.dim), F16, "engram")
        yield slot("engram_q_norm.weight", (s.dim, s.hc), F32, "engram")
        yield slot("engram_k_norm.weight", (s.dim, s.hc), F32, "engram")
    yield from attention_slots(s, layer)
    if layer in s.kv_sources:
        yield slot("attn_compressor_kv.weight", (s.dim, s.head_dim), F16, "compressor")
        if s.ratios[layer] > 1:
            yield slot("attn_compressor_gate.weight", (s.dim, s.head_dim), F16, "compressor")
        yield slot("attn_compressor_norm.weight", (s.head_dim,), F32, "compressor")
        yield slot("indexer.attn_k.weight", (s.head_dim, s.index_dim), F16, "compressor")
        yield slot("indexer.k_norm.weight", (s.index_dim,), F32, "compressor")
    if layer in s.index_sources:
        yield from indexer_slots(s, layer)
    yield from ffn_slots(s, layer, ROUTER, biased=True)
