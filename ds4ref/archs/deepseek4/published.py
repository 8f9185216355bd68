"""DeepSeek V4 as published in safetensors: maps its tensor names and config values to those of a GGUF file.

Published tensor names are DeepSeek's own (``layers.0.attn.wq_a.weight``); config keys are those of DeepSeek's
config.json or of the one that Hugging Face's ``DeepseekV4Config`` writes. The block for multi-token prediction
(``mtp.0.*``) is treated as a model file of its own (``mtp_parts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from ...errors import ModelFileError
from ...text.protocol import ASSISTANT, BOS, DSML, EOS, THINK_CLOSE, THINK_OPEN, USER
from ...text.published import TOKENIZER, vocabulary
from ...weights.accounting import inert
from ...weights.cursor import quote
from ...weights.published import TensorParts
from .shape import ARCHITECTURE, CSA, HCA, MERGES_KEY, PLAIN, PREFIX, TOKENS_KEY
from .tensors import MTP, check_drafter, is_dspark

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry
    from ...weights.safetensors import Checkpoint

MODEL_NAMES = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
    "output_hc_fn.weight": "hc_head_fn",
    "output_hc_base.weight": "hc_head_base",
    "output_hc_scale.weight": "hc_head_scale",
}
LAYER_NAMES = {
    "hc_attn_fn.weight": "hc_attn_fn",
    "hc_attn_base.weight": "hc_attn_base",
    "hc_attn_scale.weight": "hc_attn_scale",
    "hc_ffn_fn.weight": "hc_ffn_fn",
    "hc_ffn_base.weight": "hc_ffn_base",
    "hc_ffn_scale.weight": "hc_ffn_scale",
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn_sinks.weight": "attn.attn_sink",
    "attn_q_a.weight": "attn.wq_a.weight",
    "attn_q_a_norm.weight": "attn.q_norm.weight",
    "attn_q_b.weight": "attn.wq_b.weight",
    "attn_kv.weight": "attn.wkv.weight",
    "attn_kv_a_norm.weight": "attn.kv_norm.weight",
    "attn_output_a.weight": "attn.wo_a.weight",
    "attn_output_b.weight": "attn.wo_b.weight",
    "attn_compressor_ape.weight": "attn.compressor.ape",
    "attn_compressor_norm.weight": "attn.compressor.norm.weight",
    "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
    "attn_compressor_gate.weight": "attn.compressor.wgate.weight",
    "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight",
    "indexer.proj.weight": "attn.indexer.weights_proj.weight",
    "indexer_compressor_ape.weight": "attn.indexer.compressor.ape",
    "indexer_compressor_norm.weight": "attn.indexer.compressor.norm.weight",
    "indexer_compressor_kv.weight": "attn.indexer.compressor.wkv.weight",
    "indexer_compressor_gate.weight": "attn.indexer.compressor.wgate.weight",
    "ffn_gate_inp.weight": "ffn.gate.weight",
    "exp_probs_b.bias": "ffn.gate.bias",
    "ffn_gate_tid2eid.weight": "ffn.gate.tid2eid",
    "ffn_gate_shexp.weight": "ffn.shared_experts.w1.weight",
    "ffn_down_shexp.weight": "ffn.shared_experts.w2.weight",
    "ffn_up_shexp.weight": "ffn.shared_experts.w3.weight",
}
MTP_NAMES = {
    f"{name}.weight": name if name.startswith("hc_") else f"{name}.weight"
    for name in ("e_proj", "h_proj", "enorm", "hnorm", "norm", "hc_head_fn", "hc_head_base", "hc_head_scale")
} | {ours: theirs for ours, theirs in LAYER_NAMES.items() if not re.search("compressor|indexer|tid2eid", ours)}
"""GGUF name -> published name of each tensor of the block for multi-token prediction, both without "mtp.0."."""
DSPARK_NAMES = {
    f"{name}.weight": name if name.startswith("hc_") else f"{name}.weight"
    for name in (
        *("main_proj", "main_norm", "norm", "hc_head_fn", "hc_head_base", "hc_head_scale"),
        *("markov_head.markov_w1", "markov_head.markov_w2", "confidence_head.proj"),
    )
} | {ours: theirs for ours, theirs in MTP_NAMES.items() if ours in LAYER_NAMES}
"""The same of a stage of a DSpark drafter, without "mtp." and its number; the first and the last have some alone."""
EXPERT_NAMES = {"ffn_gate_exps.weight": "w1", "ffn_down_exps.weight": "w2", "ffn_up_exps.weight": "w3"}

LAYER_TYPES = {"sliding_attention": PLAIN, "compressed_sparse_attention": CSA, "heavily_compressed_attention": HCA}
SQRT_SOFTPLUS = 4
"""llama.cpp's id of the router's activation function (``expert_gating_func``)."""

INERT = (
    inert("the drafter is a model of its own", "num_nextn_predict_layers n_mtp_layers dspark_*"),
    inert("images are not read", "vision_*"),
    inert("the head is a tensor of its own", "tie_word_embeddings"),
    inert("the bias that chooses experts is a tensor", "topk_method", "noaux_tc"),
    inert("no groups of experts", "n_group topk_group", 1),
    inert("every layer has experts", "moe_layer_freq", 1),
    inert("every layer has experts", "first_k_dense_replace", 0),
    inert("no such tensors", "attention_bias mlp_bias", False),
)
"""Keys of config.json that have no effect in this family, in addition to those of ``weights.inert.CONFIG``."""
INERT_TENSORS = (
    inert("the drafter is a model of its own", "mtp.*"),
    inert("images are not read", "layers.*.ffn.gate.bias_vl vision.* aligner.* image_*"),
)

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""GGUF token types."""

MAX_LAYERS, MAX_EXPERTS = 1024, 1 << 14

# (GGUF key without the family's prefix, config.json key)
INTS = (
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("vocab_size", "vocab_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "head_dim"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.output_lora_rank", "o_lora_rank"),
    ("attention.output_group_count", "o_groups"),
    ("expert_count", "n_routed_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
    ("hyper_connection.count", "hc_mult"),
    ("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"),
)
FLOATS = (
    ("expert_weights_scale", "routed_scaling_factor"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("hyper_connection.epsilon", "hc_eps"),
)


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    layers = config.integer("num_hidden_layers", low=1, high=MAX_LAYERS)
    if any("v41" in kind.lower().replace("_", "") for kind in config.texts("architectures", 64, [])):
        raise config.fail("architectures", "are those of DeepSeek V4.1, whose model_type is 'deepseek_v41'")
    for key, wanted in (("scoring_func", "sqrtsoftplus"), ("hidden_act", "silu")):
        if config.text(key, wanted) != wanted:
            raise config.fail(key, f"is {quote(config.text(key), 40)}, wanted {wanted!r}")
    entries: list[MetadataEntry] = [
        ("general.architecture", "string", ARCHITECTURE),
        ("general.name", "string", config.text("_name_or_path", "") or checkpoint.folder.resolve().name),
    ]
    entries += [(PREFIX + key, "u32", config.integer(theirs)) for key, theirs in INTS]
    # f64 keeps the number as the config states it; f32 would round it
    entries += [(PREFIX + key, "f64", config.number(theirs)) for key, theirs in FLOATS]
    entries += [
        (PREFIX + "attention.head_count_kv", "u32", config.integer("num_key_value_heads", 1)),
        (PREFIX + "rope.dimension_count", "u32", _rotary(config)),
        (PREFIX + "hash_layer_count", "u32", _hash_layers(config, layers)),
        (PREFIX + "attention.compress_ratios", "i32[]", _ratios(config, layers)),
        (PREFIX + "swiglu_clamp_exp", "f64[]", [config.number("swiglu_limit")] * layers),
        (PREFIX + "expert_weights_norm", "bool", config.flag("norm_topk_prob", True)),
        (PREFIX + "expert_gating_func", "u32", SQRT_SOFTPLUS),  # llama.cpp's
        (PREFIX + "context_length", "u32", config.integer("max_position_embeddings", 1 << 20)),
        ("general.quantization_version", "u32", 2),
        *((PREFIX + key, kind, value) for key, kind, value in rope(config)),
    ]
    if checkpoint.has(TOKENIZER):
        read = cache(lambda: vocabulary(checkpoint))
        entries += [
            ("tokenizer.ggml.model", "string", "gpt2"),
            (TOKENS_KEY, "string[]", lambda: read()[0]),
            (MERGES_KEY, "string[]", lambda: read()[1]),
            *_for_llama(read),
        ]
    return entries


_TYPES = {BOS: CONTROL, EOS: CONTROL, USER: CONTROL, ASSISTANT: CONTROL} | dict.fromkeys(
    (THINK_OPEN, THINK_CLOSE, DSML), USER_DEFINED
)


def _for_llama(read: Callable[[], tuple[list[str], list[str]]]) -> Iterator[MetadataEntry]:
    """Yield vocabulary metadata that this engine does not use but llama.cpp needs; ``read`` returns tokens and
    merges."""
    at = "tokenizer.ggml."
    yield at + "pre", "string", "joyai-llm"
    yield at + "token_type", "i32[]", lambda: [_TYPES.get(token, NORMAL) for token in read()[0]]
    for name, token in (("bos", BOS), ("eos", EOS)):
        yield f"{at}{name}_token_id", "u32", partial(_index, read, token)


def _index(read: Callable[[], tuple[list[str], list[str]]], token: str) -> int:
    return read()[0].index(token) if token in read()[0] else 0


def _rotary(config: Config) -> int:
    """Return the number of channels that RoPE rotates. The config may give it directly, or as a share of the head in up
    to three places, which must agree."""
    size, nested = config.integer("head_dim", low=1), config.part("rope_parameters")
    given = []
    if config.has("qk_rope_head_dim"):
        given.append(("qk_rope_head_dim", config.integer("qk_rope_head_dim")))
    for part in (config, nested.part("main"), nested.part("compress")):
        if part.has("partial_rotary_factor"):
            share = part.number("partial_rotary_factor")
            if not 0 < share <= 1:
                raise part.fail("partial_rotary_factor", f"is {share:g}, wanted a share of the head")
            given.append(("partial_rotary_factor", int(size * share)))
    if not given:
        raise config.fail("qk_rope_head_dim", "is missing")
    for name, count in given:
        if count != given[0][1]:
            raise config.fail(name, f"makes {count} rotary channels, {given[0][0]} makes {given[0][1]}")
    return given[0][1]


def _hash_layers(config: Config, layers: int) -> int:
    """Return how many of the first layers choose experts by token id (hash routing)."""
    declared = config.integer("num_hash_layers") if config.has("num_hash_layers") else None
    if declared is not None and not config.has("mlp_layer_types"):
        return declared
    kinds = config.texts("mlp_layer_types", MAX_LAYERS)[:layers]
    count = sum(kind == "hash_moe" for kind in kinds)
    if kinds != ["hash_moe"] * count + ["moe"] * (layers - count):
        raise config.fail("mlp_layer_types", f"is not hash_moe for the first of {layers} layers and moe for the rest")
    if declared not in (None, count):
        raise config.fail("num_hash_layers", f"is {declared}, mlp_layer_types has {count}")
    return count


def _ratios(config: Config, layers: int) -> list[int]:
    """Return the compression ratio of each layer (tokens per compressed row): 0, 4 or 128."""
    rates = config.part("compress_rates")
    for kind, ratio in LAYER_TYPES.items():
        if ratio and rates.integer(kind, ratio) != ratio:
            raise rates.fail(kind, f"is not {ratio}")
    given: dict[str, list[int]] = {}
    if config.has("compress_ratios"):
        given["compress_ratios"] = config.integers("compress_ratios", MAX_LAYERS + 64)
    if config.has("layer_types") or not given:
        kinds = config.texts("layer_types", MAX_LAYERS)
        unknown = next((kind for kind in kinds if kind not in LAYER_TYPES), None)
        if unknown is not None:
            raise config.fail("layer_types", f"has {quote(unknown, 40)}, not one of {', '.join(LAYER_TYPES)}")
        given["layer_types"] = [LAYER_TYPES[kind] for kind in kinds]
    for key, ratios in given.items():
        if len(ratios) < layers:
            raise config.fail(key, f"has {len(ratios)} entries for {layers} layers")
    first, *others = (ratios[:layers] for ratios in given.values())  # further entries are for multi-token prediction
    if others and others[0] != first:
        layer = next(i for i in range(layers) if others[0][i] != first[i])
        raise config.fail("layer_types", f"is not what compress_ratios says of layer {layer}")
    return first


def rope(config: Config) -> Iterator[MetadataEntry]:
    """Yield the RoPE bases of layers without and with compression, and the YaRN parameters of the latter; their keys
    lack the family's prefix.

    Hugging Face nests them in ``rope_parameters``; DeepSeek's config.json has flat keys. YaRN's factor of cos and sin
    is 1 in this model; the nested form must state it, because its default is another.
    """
    nested = config.part("rope_parameters")
    scaling = config.part("rope_scaling") if config.values.get("rope_scaling") else nested
    in_two = nested.has("compress") and scaling is nested
    theta, compressed = config, config
    key = "compress_rope_theta"
    if in_two:
        theta, compressed, key = nested.part("main"), nested.part("compress"), "rope_theta"
        scaling = compressed
        if theta.agreed("rope_type", "type", default="default") != "default":
            raise theta.fail("rope_type", "is not 'default'")
        for flat, part in (("rope_theta", theta), ("compress_rope_theta", compressed)):
            if config.number(flat, part.number("rope_theta")) != part.number("rope_theta"):
                raise part.fail("rope_theta", f"is {part.number('rope_theta'):g}, {flat} is {config.number(flat):g}")
    kind = scaling.agreed("rope_type", "type", default="default")
    if kind not in ("yarn", "default"):
        raise scaling.fail("rope_type", f"is {quote(kind, 40)}, wanted yarn or default")
    longest = config.integer("max_position_embeddings", 1 << 20)
    stretched = kind == "yarn"
    if stretched and in_two and not scaling.has("attention_factor"):
        raise scaling.fail("attention_factor", "is missing, only 1 is computed here and YaRN's own is another")
    if stretched and scaling.number("attention_factor", 1.0) != 1:
        raise scaling.fail("attention_factor", f"is {scaling.number('attention_factor'):g}, only 1 is computed here")
    yield "rope.freq_base", "f64", theta.number("rope_theta")
    yield "attention.compress_rope_freq_base", "f64", compressed.number(key)
    yield "rope.scaling.type", "string", "yarn"
    yield "rope.scaling.factor", "f64", scaling.number("factor") if stretched else 1.0
    yield "rope.scaling.yarn_beta_fast", "f64", scaling.number("beta_fast", 32.0) if stretched else 32.0
    yield "rope.scaling.yarn_beta_slow", "f64", scaling.number("beta_slow", 1.0) if stretched else 1.0
    original = scaling.integer("original_max_position_embeddings") if stretched else longest
    yield "rope.scaling.original_context_length", "u32", original


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``. Missing tensors are left out; binding reports them by their GGUF
    names."""
    layers = config.integer("num_hidden_layers", low=1, high=MAX_LAYERS)
    tensors = checkpoint.tensors
    tensor_parts = [TensorParts(ours, (theirs,)) for ours, theirs in MODEL_NAMES.items() if theirs in tensors]
    for layer in range(layers):
        tensor_parts += block(config, checkpoint, f"blk.{layer}.", f"layers.{layer}.", LAYER_NAMES)
    return tensor_parts


def mtp_metadata(config: Config) -> list[MetadataEntry]:
    """Return the settings of a DSpark drafter, in ds4's keys; [] if config.json has none."""
    if not config.has("dspark_block_size"):
        return []
    targets = config.integers("dspark_target_layer_ids", MAX_LAYERS)
    return [
        (PREFIX + "dspark.block_size", "u32", config.integer("dspark_block_size")),
        (PREFIX + "dspark.noise_token_id", "u32", config.integer("dspark_noise_token_id")),
        (PREFIX + "dspark.target_layers", "u32[]", targets),
    ]


def mtp_parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Return how each tensor of the checkpoint's drafter, a block for multi-token prediction or DSpark, is made of its
    tensors; [] if it has none."""
    if not any(name.startswith(MTP) for name in checkpoint.tensors):
        return []
    check_drafter(checkpoint.path, checkpoint.tensors)
    if is_dspark(checkpoint.tensors):
        stages = sorted({name.split(".")[1] for name in checkpoint.tensors if name.startswith("mtp.")}, key=int)
        blocks = [block(config, checkpoint, f"mtp.{i}.", f"mtp.{i}.", DSPARK_NAMES) for i in stages]
        return [part for block in blocks for part in block]
    needed = (*MTP_NAMES.values(), *(f"ffn.experts.0.{name}.weight" for name in EXPERT_NAMES.values()))
    lost = next((MTP + name for name in needed if MTP + name not in checkpoint.tensors), None)
    if lost is not None:
        raise ModelFileError(checkpoint.path, f"tensor {lost!r} is missing, others of its block are not")
    return list(block(config, checkpoint, MTP, MTP, MTP_NAMES))


def block(
    config: Config, checkpoint: Checkpoint, ours: str, theirs: str, names: Mapping[str, str]
) -> Iterator[TensorParts]:
    """Yield how each tensor of one layer is made of the checkpoint's tensors.

    ours, theirs: prefixes of the layer's tensors in GGUF files and in the checkpoint. names: GGUF name -> published
    name without them, except routed experts.
    """
    experts = config.integer("n_routed_experts", low=1, high=MAX_EXPERTS)
    tensors = checkpoint.tensors
    yield from (TensorParts(ours + a, (theirs + b,)) for a, b in names.items() if theirs + b in tensors)
    for a, b in EXPERT_NAMES.items():
        if f"{theirs}ffn.experts.0.{b}.weight" not in tensors:
            continue
        stack = tuple(f"{theirs}ffn.experts.{expert}.{b}.weight" for expert in range(experts))
        lost = next((name for name in stack if name not in tensors), None)
        if lost is not None:
            raise ModelFileError(checkpoint.path, f"tensor {lost!r} is missing, others of its layer are not")
        yield TensorParts(ours + a, stack, stack=True)
