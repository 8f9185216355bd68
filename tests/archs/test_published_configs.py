"""config.json as models of these families are published with: every key is computed or known to have no effect.

The values are small where they are dimensions; the keys are those that the published files have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4ref.archs.dense.shape import Scaling
from ds4ref.engine import Engine

from . import dense
from .test_dense_folders import SHAPE, folder_of

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "rope_scaling": None, "torch_dtype": "float16", "use_cache": True,
}  # fmt: skip
ROPE3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
         "rope_type": "llama3"}  # fmt: skip
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "initializer_range": 0.02, "max_window_layers": 28,
    "rope_scaling": None, "sliding_window": None, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 1": ("llama", {"architectures": ["LLaMAForCausalLM"], "bos_token_id": 0, "eos_token_id": 1,
                          "hidden_act": "silu", "initializer_range": 0.02, "max_sequence_length": 2048,
                          "pad_token_id": -1, "torch_dtype": "float16", "transformers_version": "4.27.0.dev0"}),
    "a folder saved from a GGUF by transformers 5.24": ("llama", {**LLAMA, "_model_name_or_path": "SmolLM2 135M",
                "dtype": "bfloat16", "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}),
    "Llama 2": ("llama", {**LLAMA, "_name_or_path": "meta-llama/Llama-2-7b-hf", "pretraining_tp": 1,
                          "transformers_version": "4.31.0.dev0"}),
    "Llama 3": ("llama", {**LLAMA, "attention_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1}),
    "Llama 3.1": ("llama", {**LLAMA, "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
                            "eos_token_id": [128001, 128008, 128009], "pretraining_tp": 1, "rope_scaling": ROPE3}),
    "Llama 3.2, converted": ("llama", {**LLAMA, "rope_scaling": ROPE3, "pad_token_id": 128004, "unsloth_fixed": True,
                                       "unsloth_version": "2025.3.14"}),
    "TinyLlama": ("llama", {**LLAMA, "attention_bias": False, "pretraining_tp": 1, "transformers_version": "4.35.0"}),
    "SmolLM2": ("llama", {**LLAMA, "attention_bias": False, "attention_dropout": 0.0, "is_llama_config": True,
                          "mlp_bias": False, "pad_token_id": 2, "pretraining_tp": 1, "rope_interleaved": False,
                          "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}}),
    "saved by transformers 5": ("llama", {**LLAMA, "dtype": "float32", "head_dim": 8, "pad_token_id": None,
                                          "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
                                          "transformers_version": "5.24.0"}),
    "Qwen3": ("qwen3", QWEN),
    "Qwen3 2507": ("qwen3", {**QWEN, "layer_types": ["full_attention"] * 2}),
    "Qwen3 with YaRN": ("qwen3", {**QWEN, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                           "original_max_position_embeddings": 64}}),
    "Qwen3 FP8": ("qwen3", {**QWEN, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"], "ignored_layers": []}}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_accounted_for(name: str, tmp_path: Path) -> None:
    family, values = CONFIGS[name]
    folder, _ = folder_of(tmp_path / "m", replace(SHAPE, family=dense.FAMILIES[family]), True, **values)
    with Engine.open(folder) as engine:
        account = engine.source.config_account()  # type: ignore[attr-defined]
        assert not account.refused and {"hidden_act", "rope_theta"} <= set(account.computed)
        yarn = name == "Qwen3 with YaRN"
        assert engine.shape.scaling == (Scaling("yarn", 4.0, 64) if yarn else Scaling())
        assert ("rope_freqs.weight" in engine.source.tensors) == ("Llama 3." in name)
        assert not {"rope_scaling.factor", "head_dim", "attention_bias"} & set(account.inert)


KEYS = [
    ("general.type", "string", "model"), ("general.name", "string", "Llama 3.2 1B Instruct"),
    ("general.finetune", "string", "Instruct"), ("general.basename", "string", "Llama-3.2"),
    ("general.size_label", "string", "1B"), ("general.tags", "string[]", ["facebook", "meta"]),
    ("general.languages", "string[]", ["en", "de"]), ("general.file_type", "u32", 15),
    ("general.quantization_version", "u32", 2), ("general.license", "string", "llama3.2"),
    ("tokenizer.ggml.model", "string", "gpt2"), ("tokenizer.ggml.pre", "string", "llama-bpe"),
    ("tokenizer.ggml.token_type", "i32[]", [1, 1]), ("tokenizer.ggml.merges", "string[]", ["a b"]),
    ("tokenizer.ggml.bos_token_id", "u32", 0), ("tokenizer.ggml.add_bos_token", "bool", True),
    ("tokenizer.chat_template", "string", "{{ messages }}"), ("quantize.imatrix.file", "string", "/m/x.dat"),
    ("quantize.imatrix.entries_count", "i32", 112), ("llama.attention.causal", "bool", True),
    ("llama.rope.scaling.finetuned", "bool", False), ("llama.tensor_data_layout", "string", "Meta AI original pth"),
]  # fmt: skip


def test_a_gguf_file_as_converters_write_it_is_accounted_for(tmp_path: Path) -> None:
    tensors = dense.draw_tensors(SHAPE, 1, True)
    given = {key for key, *_ in KEYS}
    entries = [entry for entry in SHAPE.metadata() if entry[0] not in given]
    from ds4ref.weights.container import TensorSpec
    from ds4ref.weights.writer import write_gguf

    tensors["blk.0.attn_rot_embd.weight"] = tensors["output_norm.weight"][:4]
    specs = [TensorSpec(name, "F32", values.shape[::-1]) for name, values in tensors.items()]
    with write_gguf(tmp_path / "m.gguf", [*entries, *KEYS], specs) as out:
        for name, values in tensors.items():
            out.write(name, values)
    with Engine.open(tmp_path / "m.gguf") as engine:
        assert engine.shape.vocab == SHAPE.vocab and engine.shape.scaling == Scaling()
