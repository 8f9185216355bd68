"""DeepSeek V4.1 as published in safetensors: maps its tensor names and config values to those of a GGUF file.

The config's keys lie in ``text_config``. Engram's token map, which the folder does not state, is computed from its
tokenizer (``token_map``); primes and multipliers follow from the config (``hashing``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ...text.published import TOKENIZER, vocabulary
from ...weights.accounting import Inert, inert
from ...weights.cursor import quote
from ...weights.inert import CONFIG
from ...weights.published import TensorParts
from ..deepseek4.published import FLOATS, INTS, LAYER_NAMES, MAX_LAYERS, SQRT_SOFTPLUS, block, rope
from ..deepseek4.published import INERT as V4_INERT
from ..deepseek4.published import MODEL_NAMES as V4_MODEL_NAMES
from ..keys import MERGES_KEY, TOKENS_KEY
from .hashing import multipliers, primes
from .shape import ARCHITECTURE, PREFIX
from .token_map import token_map

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry
    from ...weights.safetensors import Checkpoint
    from ..binding import Slot

MODEL_NAMES = {ours: theirs for ours, theirs in V4_MODEL_NAMES.items() if "_hc_" not in ours}
NAMES = {
    ours: theirs
    for ours, theirs in LAYER_NAMES.items()
    if not ours.startswith("indexer_compressor") and not ours.endswith(("_ape.weight", "tid2eid.weight"))
} | {
    "indexer.attn_k.weight": "attn.indexer.wk.weight",
    "indexer.k_norm.weight": "attn.indexer.k_norm.weight",
    "engram_embd.weight": "engram.embed.weight",
    "engram_kv.weight": "engram.wkv.weight",
    "engram_q_norm.weight": "engram.q_weight",
    "engram_k_norm.weight": "engram.k_weight",
}
"""GGUF name -> published name of each tensor of a layer, without the layer's prefix; routed experts aside."""

BLOCK = [32, 32]
"""Rows and columns of a weight that share an FP8 scale."""
_FP8 = ("attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "indexer_attn_q_b", "engram_kv",
        "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")  # fmt: skip
_FLOAT32 = ("attn_sinks", "exp_probs_b")


def stored_as(slot: Slot) -> tuple[str, int]:
    """Return the storage format in which DeepSeek's folder has the tensor of a slot, and its bytes with scales."""
    elements = prod(slot.dims)
    if slot.attr in _FP8:
        high, wide = BLOCK
        return "F8_E4M3_32", elements + -(-slot.dims[1] // high) * -(-slot.dims[0] // wide)
    fmt = {"experts": "MXFP4", "lookup": "F8_E4M3_32", "hc": "F32"}.get(slot.part, "BF16")
    kind = FORMATS["F32" if slot.attr in _FLOAT32 else fmt]
    return kind.name, elements // kind.block_elems * kind.block_bytes


TEXT = "text_config"


def _nested(entries: tuple[Inert, ...]) -> tuple[Inert, ...]:
    """Return the entries with the names that their keys have in ``TEXT``."""
    return tuple(entry._replace(names=tuple(f"{TEXT}.{name}" for name in entry.names)) for entry in entries)


_OWN = (
    *V4_INERT,
    inert("decides nothing that the other keys do not", "layer_types mlp_layer_types num_hash_layers"),
)
INERT = (*_OWN, *_nested((*CONFIG, *_OWN)), inert("images are not read", "vision_config.* vision_config projector_*"))
"""Keys of config.json that have no effect in this family, in addition to those of ``weights.inert.CONFIG``."""
INERT_TENSORS = (
    inert("the drafter is a model of its own", "mtp.*"),
    inert("images are not read", "layers.*.ffn.gate.bias_vl vision.* aligner.* image_start image_end image_newline"),
)

_NEW_INTS = (
    ("attention.candidate_topk_blocks", "candidate_topk_blocks"),
    ("attention.candidate_block_size", "candidate_block_size"),
)
_NEW_LISTS = (
    ("attention.kv_source_layer_ids", "kv_source_layer_ids"),
    ("attention.index_source_layer_ids", "index_source_layer_ids"),
)


_DEFAULTS = {"n_shared_experts": 1, "candidate_topk_blocks": 0, "candidate_block_size": 1}


def text_config(config: Config) -> Config:
    """Return the part of a config that describes the text model: ``TEXT``, or the config itself."""
    return config.part(TEXT) if config.has(TEXT) else config


def _integer(config: Config, key: str) -> int:
    return config.integer(key, _DEFAULTS[key]) if key in _DEFAULTS else config.integer(key)


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    name = config.text("_name_or_path", "") or checkpoint.folder.resolve().name
    config = text_config(config)
    layers = config.integer("num_hidden_layers", low=1, high=MAX_LAYERS)
    for key, wanted in (("scoring_func", "sqrtsoftplus"), ("hidden_act", "silu")):
        if config.text(key, wanted) != wanted:
            raise config.fail(key, f"is {quote(config.text(key), 40)}, wanted {wanted!r}")
    ratios = config.integers("compress_ratios", MAX_LAYERS + 64)
    if len(ratios) < layers:
        raise config.fail("compress_ratios", f"has {len(ratios)} entries for {layers} layers")
    candidates = config.integer("candidate_source_layer_id", -1, low=-1, high=MAX_LAYERS)
    entries: list[MetadataEntry] = [
        ("general.architecture", "string", ARCHITECTURE),
        ("general.name", "string", name),
        *((PREFIX + key, "u32", _integer(config, theirs)) for key, theirs in (*INTS, *_NEW_INTS)),
        *((PREFIX + key, "u32[]", config.integers(theirs, MAX_LAYERS)) for key, theirs in _NEW_LISTS),
        *((PREFIX + key, "f64", config.number(theirs)) for key, theirs in FLOATS),
        (PREFIX + "expert_gate_temperature", "f64", config.number("gate_temp", 1.0)),
        (PREFIX + "attention.candidate_source_layer_id", "i32", candidates),
        (PREFIX + "attention.head_count_kv", "u32", config.integer("num_key_value_heads", 1)),
        (PREFIX + "rope.dimension_count", "u32", config.integer("qk_rope_head_dim")),
        (PREFIX + "attention.compress_ratios", "u32[]", ratios[:layers]),  # further entries are for the drafter
        (PREFIX + "swiglu_clamp_exp", "f64[]", [config.number("swiglu_limit")] * layers),
        (PREFIX + "expert_weights_norm", "bool", config.flag("norm_topk_prob", True)),
        (PREFIX + "expert_gating_func", "u32", SQRT_SOFTPLUS),
        (PREFIX + "context_length", "u32", config.integer("max_position_embeddings", 1 << 20)),
        *((PREFIX + key, kind, value) for key, kind, value in rope(config)),
    ]
    read = cache(lambda: vocabulary(checkpoint))
    if checkpoint.has(TOKENIZER):
        entries += [
            ("tokenizer.ggml.model", "string", "gpt2"),
            (TOKENS_KEY, "string[]", lambda: read()[0]),
            (MERGES_KEY, "string[]", lambda: read()[1]),
        ]
    return entries + _engram(config, checkpoint, read)


def _engram(
    config: Config, checkpoint: Checkpoint, read: Callable[[], tuple[list[str], list[str]]]
) -> list[MetadataEntry]:
    """Return the entries about Engram; ``read`` returns the tokens of the vocabulary. The token map is computed when it
    is first asked for."""
    layers = config.integers("engram_layer_ids", MAX_LAYERS, [])
    if not layers:
        return []
    if not checkpoint.has(TOKENIZER):
        raise config.fail("engram_layer_ids", f"needs the token map, which is computed from {TOKENIZER}: it is missing")
    grams, heads = (config.integer(f"engram_{key}", low=1, high=256) for key in ("max_ngram_size", "n_heads"))
    count = config.integer("engram_compressed_vocab_size", low=1, high=1 << 20)
    pads = [key for key in ("engram_pad_token_id", "engram_pad_id") if config.has(key)] or ["engram_pad_token_id"]
    at = PREFIX + "engram."
    columns = [len(layers), grams - 1, heads]
    smallest = config.integer("engram_vocab_size", low=2, high=1 << 31)

    def flat(compute: Callable[[], np.ndarray]) -> list[Any]:
        values: list[Any] = compute().reshape(-1).tolist()
        return values

    return [
        (at + "layer_ids", "u32[]", layers),
        (at + "rows", "u64[]", config.integers("engram_num_embeddings", MAX_LAYERS)),
        (at + "max_ngram_size", "u32", grams),
        (at + "head_count", "u32", heads),
        (at + "head_length", "u32", config.integer("engram_head_dim")),
        (at + "compressed_vocab_size", "u32", count),
        (at + "pad_id", "u32", config.integer(pads[0])),
        (at + "token_map", "u32[]", lambda: token_map(read()[0], count, checkpoint.folder / TOKENIZER)),
        (at + "primes", "u64[]", lambda: flat(partial(primes, smallest, *columns))),
        (at + "multipliers", "u64[]", lambda: flat(partial(multipliers, layers, grams, count))),
    ]


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``. Missing tensors are left out; binding reports them by their GGUF
    names."""
    config, tensors = text_config(config), checkpoint.tensors
    tensor_parts = [TensorParts(ours, (theirs,)) for ours, theirs in MODEL_NAMES.items() if theirs in tensors]
    for layer in range(config.integer("num_hidden_layers", low=1, high=MAX_LAYERS)):
        tensor_parts += block(config, checkpoint, f"blk.{layer}.", f"layers.{layer}.", NAMES)
    return [part._replace(lookup=part.name.endswith("engram_embd.weight")) for part in tensor_parts]
