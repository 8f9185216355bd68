"""The rows of the gate: one tiny folder, as Hugging Face has it, of every architecture, kind of rope and kind of head.

Widths are multiples of 256, so that every format fits; windows are left out where llama.cpp does not read them
(``test_families_llama``).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.dense.shape import DenseShape
from ds4ref.nano.checkpoint import plans, write_checkpoint
from ds4ref.nano.recipe import NANO, write_model
from ds4ref.weights import open_source
from ds4ref.weights.safetensors_writer import write_folder

from ..archs import dense, families
from ..archs.families import Config

TEXT, LONG_TEXT = 48, 150
"""Tokens of a text; DeepSeek V4's is longer, so that it compresses rows and selects some."""
TRAINED = 16
"""Context before scaling: within a text, so that every part of a scaling tells."""
ROPES: dict[str, Config] = {
    "none": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
}  # fmt: skip
WIDTH, LAYERS, EXPERTS = 256, 2, 4
CONFIGS: dict[str, Config] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mixtral": {
        "model_type": "mixtral", "sliding_window": None, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    },
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", "use_sliding_window": False},
    "qwen3moe": {
        "model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH,
        "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1, "use_sliding_window": False,
    },
    "gemma3": {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 12,
        "query_pre_attn_scalar": 64, "rope_local_base_freq": 1e3, "sliding_window_pattern": 6, "pad_token_id": 0,
        "eos_token_id": 1,
    },
}  # fmt: skip
ARCHITECTURES = (*CONFIGS, "deepseek4")


@dataclass(frozen=True)
class Row:
    """An architecture with a kind of rope, and with the embedding as its head or not."""

    arch: str
    rope: str
    tied: bool

    def __str__(self) -> str:
        return f"{self.arch} | {self.rope} | {'yes' if self.tied else 'no'}"

    @property
    def plain(self) -> bool:
        """Whether it is what the family is published as."""
        return self.rope == ("yarn" if self.arch == "deepseek4" else "none") and not self.tied

    def folder(self, path: Path, definition: Config) -> list[int]:
        """Write the folder with this tokenizer.json (DeepSeek V4 has its own); return the ids of a text."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        if self.arch == "deepseek4":
            return _deepseek(self, path, rng)
        shape, config = _shape(self.arch), dict(CONFIGS[self.arch])
        if self.rope != "none":
            config["rope_scaling"] = ROPES[self.rope]
        dense.published(path, shape, dense.draw_tensors(shape, int(rng.integers(1 << 30)), self.tied), **config)
        (path / "tokenizer.json").write_text(json.dumps(definition))
        return rng.integers(0, shape.vocab, TEXT).tolist()


def rows() -> list[Row]:
    """Return every combination, architecture by architecture."""
    return [Row(arch, rope, tied) for arch in ARCHITECTURES for rope in ROPES for tied in (False, True)]


def _shape(arch: str) -> DenseShape:
    kind = families.KINDS["llama3" if arch == "llama" else arch]
    gemma, moe = kind.family.gemma, kind.experts
    heads = 4 if arch == "qwen2" else 8  # a Qwen2 has no key for the width of its heads
    shape = DenseShape(
        kind.family, n_layers=6 if gemma else LAYERS, dim=WIDTH, ff=2 * WIDTH, n_heads=heads, n_kv_heads=2,
        head_dim=64, vocab=420, trained_ctx=2048, rope_theta=1e4, rms_eps=1e-6, name=f"gate {arch}",
    )  # fmt: skip
    if gemma:
        windowed = tuple((layer + 1) % 6 > 0 for layer in range(shape.n_layers))
        shape = replace(shape, window=12, window_theta=1e3, windowed=windowed)
    if moe:
        width = shape.ff if arch == "mixtral" else WIDTH
        shape = replace(shape, n_experts=EXPERTS, n_used=2, expert_ff=width)
    return shape


def _deepseek(row: Row, path: Path, rng: np.random.Generator) -> list[int]:
    """The random model with wider ranks, as DeepSeek publishes it; a tied one lacks the head."""
    made = path.with_suffix(".made.gguf")
    write_model(made, replace(NANO, q_rank=WIDTH), "q4", seed=int(rng.integers(1 << 30)))
    with open_source(made) as source:
        write_checkpoint(source, path)
        if row.tied:
            tensors = plans(source, ModelShape.from_metadata(source))
            write_folder(path, [tensor for tensor in tensors if tensor.name != "head.weight"])
    made.unlink()
    config = json.loads((path / "config.json").read_text())
    config["tie_word_embeddings"] = row.tied
    if row.rope != "yarn":
        config["rope_scaling"] = ROPES[row.rope] or None
    (path / "config.json").write_text(json.dumps(config))
    return rng.integers(0, NANO.vocab, LONG_TEXT).tolist()
