"""DeepSeek V4.1 Flash at true size, in holes: the published folder and ds4's GGUF file, made from the specification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4ref.archs.deepseek4.published import EXPERT_NAMES
from ds4ref.archs.deepseek41.hashing import multipliers, primes
from ds4ref.archs.deepseek41.published import MODEL_NAMES, NAMES
from ds4ref.archs.deepseek41.shape import ENCODING, FLASH, PREFIX, ModelShape
from ds4ref.archs.deepseek41.tensors import slots
from ds4ref.nano.checkpoint import tokenizer
from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder, write_json

from .releases import VISION, _of, _vision

FP8 = ("wq_a.", "wq_b.", "attn.wkv.", "wo_a.", "wo_b.", "shared_experts", "engram.wkv")
FLOAT = ("hc_", "attn_sink", "gate.bias")
DSPARK = {"num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
          "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
          "dspark_num_experts_per_tok": 3}  # fmt: skip


def config(s: ModelShape = FLASH, **more: Any) -> dict[str, Any]:
    """The published config.json, from the dimensions of ``s``; ``more``: further keys of its text part."""
    text = {
        "vocab_size": s.vocab, "hidden_size": s.dim, "num_hidden_layers": s.n_layers, "hc_mult": s.hc,
        "hc_sinkhorn_iters": s.sinkhorn_iters, "num_attention_heads": s.n_heads, "head_dim": s.head_dim,
        "num_key_value_heads": 1, "qk_rope_head_dim": s.rope_dim, "q_lora_rank": s.q_rank, "o_groups": s.o_groups,
        "o_lora_rank": s.o_rank, "sliding_window": s.window, "index_n_heads": s.index_heads,
        "index_head_dim": s.index_dim, "index_topk": s.index_topk, "n_routed_experts": s.n_experts,
        "num_experts_per_tok": s.n_used, "moe_intermediate_size": s.expert_ff, "n_shared_experts": s.n_shared,
        "routed_scaling_factor": s.route_scale, "swiglu_limit": s.swiglu_limit[0], "rms_norm_eps": s.rms_eps,
        "hc_eps": s.hc_eps, "rope_theta": s.rope_theta, "compress_rope_theta": s.compress_theta,
        "rope_scaling": {"type": "yarn", "factor": s.yarn_factor, "beta_fast": s.yarn_beta_fast,
                         "beta_slow": s.yarn_beta_slow, "original_max_position_embeddings": s.yarn_orig_ctx},
        "compress_ratios": [*s.ratios, 0, 0, 0], "kv_source_layer_ids": list(s.kv_sources),
        "index_source_layer_ids": list(s.index_sources), "candidate_source_layer_id": s.candidate_source,
        "candidate_topk_blocks": s.candidate_blocks, "candidate_block_size": s.candidate_size,
        "engram_layer_ids": list(s.engram_layers), "engram_num_embeddings": list(s.engram_rows),
        "engram_max_ngram_size": s.engram_grams, "engram_n_heads": s.engram_heads, "engram_head_dim": s.engram_dim,
        "engram_vocab_size": 16_000_000, "engram_compressed_vocab_size": s.engram_vocab,
        "engram_pad_token_id": s.engram_pad, "gate_temp": s.gate_temp, "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc", "norm_topk_prob": True, "hidden_act": "silu", "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": False, **DSPARK, **more,
    }  # fmt: skip
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "image_token_id": 129264,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16", "text_config": text,
        "vision_config": {key: value for key, value in VISION.items() if key != "image_token_id"},
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
    }  # fmt: skip


def tensors_of() -> list[PlannedTensor]:
    """All tensors of the published folder."""
    layer = replace(FLASH, n_layers=1, ratios=(0,), kv_sources=(), index_sources=(), candidate_source=None,
                    engram_layers=(), engram_rows=(), n_experts=128, swiglu_limit=(10.0,))  # fmt: skip
    stage = [tensor for tensor in planned(layer) if tensor.name.startswith("layers.0.")]
    drafts = [t._replace(name=t.name.replace("layers.0", f"mtp.{n}")) for n in range(3) for t in stage]
    images = [tensor for tensor in _vision(FLASH, 0) if tensor.name != "image_pad"]
    stage_images = [tensor._replace(shape=(128,)) for tensor in _vision(FLASH, 3) if tensor.name.startswith("mtp.")]
    return [*planned(FLASH), *drafts, *_drafter(), *stage_images, *images]


def _drafter() -> Iterator[PlannedTensor]:
    dim, table = FLASH.dim, (FLASH.vocab, 256)
    yield from _of("F8_E4M3", "mtp.0.", main_proj__weight=(dim, 3 * dim))
    yield from _of("F8_E8M0", "mtp.0.", main_proj__scale=(dim // 32, 3 * dim // 32))
    yield from _of("BF16", "mtp.0.", main_norm__weight=(dim,))
    yield from _of("BF16", "mtp.2.markov_head.", embed__weight=table, head__weight=table)
    yield from _of("BF16", "mtp.2.", norm__weight=(dim,), confidence_head__proj__weight=(1, dim + 256))


def planned(shape: ModelShape) -> Iterator[PlannedTensor]:
    """The tensors of the text model as published."""
    for slot in slots(shape):
        block, _, suffix = ("", "", slot.name) if slot.layer is None else slot.name.split(".", 2)
        prefix = f"layers.{slot.layer}." if block else ""
        if suffix in EXPERT_NAMES:
            for expert in range(shape.n_experts):
                name = f"{prefix}ffn.experts.{expert}.{EXPERT_NAMES[suffix]}"
                cols, rows = slot.dims[:2]
                yield PlannedTensor(f"{name}.weight", "I8", (rows, cols // 2), None)
                yield PlannedTensor(f"{name}.scale", "F8_E8M0", (rows, cols // 32), None)
            continue
        name, dims = prefix + (NAMES[suffix] if block else MODEL_NAMES[suffix]), slot.dims[::-1]
        stem = name.removesuffix("weight")
        if suffix == "engram_embd.weight":
            yield PlannedTensor(name, "F8_E4M3", dims, None)
            yield PlannedTensor(f"{stem}scale", "F8_E8M0", (dims[0], dims[1] // 32), None)
        elif any(part in name for part in FP8) and "compressor" not in name:
            yield PlannedTensor(name, "F8_E4M3", dims, None)
            yield PlannedTensor(f"{stem}scale", "F8_E8M0", tuple(-(-size // 32) for size in dims), None)
        else:
            yield PlannedTensor(name, "F32" if any(part in name for part in FLOAT) else "BF16", dims, None)


def vocabulary(count: int = FLASH.vocab, different: int = FLASH.engram_vocab) -> list[str]:
    """Tokens of which ``different`` are distinct to Engram: others differ from them in case alone."""
    return [f"t{number:x}" if number < different else f"T{number - different:x}" for number in range(count)]


def write_published(folder: Path) -> list[PlannedTensor]:
    """Write the folder, and return its tensors."""
    tensors = tensors_of()
    folder.mkdir()
    write_folder(folder, tensors, sum(tensor.nbytes for tensor in tensors) // 46)
    write_json(folder / "tokenizer.json", tokenizer(vocabulary(), ["t 1"]))
    write_json(folder / "config.json", config())
    return tensors


def metadata(shape: ModelShape = FLASH, least: int = 16_000_000) -> list[tuple[str, str, Any]]:
    """What ds4's file declares: nothing about n-grams that its arrays imply."""
    arrays = {
        "token_map": [number % shape.engram_vocab for number in range(shape.vocab)],
        "primes": primes(least, len(shape.engram_layers), shape.engram_grams - 1, shape.engram_heads),
        "multipliers": multipliers(shape.engram_layers, shape.engram_grams, shape.engram_vocab),
    }
    implied = [f"{PREFIX}engram.{key}" for key in ("max_ngram_size", "head_count", "head_length")]
    implied.append(f"{PREFIX}expert_gate_temperature")
    kept = [entry for entry in shape.metadata() if entry[0] not in implied]
    own = [(f"{PREFIX}engram.{key}", "u64[]", [int(x) for x in [*map(int, _flat(value))]])
           for key, value in arrays.items()]  # fmt: skip
    more = [("engram.encoding", "string", ENCODING), ("quantization", "string", "q2"), ("calibration", "string", "x")]
    return [*kept, *own, *((PREFIX + key, kind, value) for key, kind, value in more)]


def _flat(values: Any) -> Any:
    return values.reshape(-1) if hasattr(values, "reshape") else values
