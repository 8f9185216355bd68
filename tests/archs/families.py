"""Drawn models of every dense family as a folder of Hugging Face: config, weights and a text.

Configs are spelled as published ones are, keys left out where the family's default is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ds4ref.archs.dense.shape import DenseShape, Family, Scaling

from . import dense

Config = dict[str, Any]
TEXT = 48
"""Tokens of a text, several times a drawn window."""
GOLDEN_ROWS = 8


class Model(NamedTuple):
    """A drawn model. ``shape`` is in Hugging Face's convention, with rope in halves for every family."""

    shape: DenseShape
    tensors: dense.Tensors
    config: Config
    ids: list[int]

    def folder(self, path: Path) -> Path:
        """Write it as a folder."""
        return dense.published(path, self.shape, self.tensors, **self.config)

    def logits(self) -> np.ndarray:
        """Logits of the text by the plain pass."""
        halves = replace(self.shape, family=replace(self.shape.family, halves=True))
        return dense.logits_of(halves, self.tensors, self.ids)


def _llama3(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    scaling = Scaling("llama3", float(rng.choice([4.0, 8.0, 32.0])), int(rng.choice([16, 64])), 4.0, 1.0)
    rope = {
        "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": scaling.trained,
    }  # fmt: skip
    return replace(shape, scaling=scaling), {"model_type": "llama", "rope_scaling": rope}


def _mistral(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    window = int(rng.integers(1, 20)) if rng.integers(4) else 0
    return replace(shape, window=window), {"model_type": "mistral", "sliding_window": window or None}


def _mixtral(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    window = int(rng.integers(1, 20)) if rng.integers(2) else 0
    names = {"num_local_experts": shape.n_experts, "num_experts_per_tok": shape.n_used}
    return replace(shape, window=window), {"model_type": "mixtral", "sliding_window": window or None, **names}


def _layered(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    """Windows in no layer, in those from one on, or in those that are named."""
    kind, window = int(rng.integers(3)), int(rng.integers(1, 20))
    shape = replace(shape, n_layers=3)
    config: Config = {"model_type": shape.family.name, "use_sliding_window": kind > 0, "sliding_window": window}
    first = int(rng.integers(1, 4))
    windowed = tuple(layer >= first for layer in range(3))
    if kind == 2:
        windowed = (bool(rng.integers(2)), True, False)
        config["layer_types"] = ["sliding_attention" if some else "full_attention" for some in windowed]
    else:
        config["max_window_layers"] = first
    if kind and any(windowed):
        shape = replace(shape, window=window, windowed=windowed)
    return shape, config


def _qwen3moe(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    window = int(rng.integers(1, 20)) if rng.integers(2) else 0
    return replace(shape, window=window), {
        "model_type": "qwen3_moe", "num_experts": shape.n_experts, "num_experts_per_tok": shape.n_used,
        "moe_intermediate_size": shape.expert_ff, "norm_topk_prob": True, "mlp_only_layers": [],
        "decoder_sparse_step": 1, "use_sliding_window": window > 0, "sliding_window": window or 4096,
    }  # fmt: skip


def _gemma3(rng: np.random.Generator, shape: DenseShape) -> tuple[DenseShape, Config]:
    """Old spelling and new, stretched or not, in one layer of six and a few more."""
    shape = replace(shape, n_layers=int(rng.integers(6, 9)), window=int(rng.integers(1, 20)), window_theta=1e4)
    shape = replace(shape, windowed=tuple((layer + 1) % 6 > 0 for layer in range(shape.n_layers)))
    config: Config = {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": shape.window,
        "query_pre_attn_scalar": shape.head_dim, "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    stretched = bool(rng.integers(2))
    if stretched:
        shape = replace(shape, scaling=Scaling("linear", 8.0))
    if rng.integers(2):
        kind = {"rope_type": "linear", "factor": 8.0} if stretched else {"rope_type": "default"}
        shape = replace(shape, window_theta=float(rng.choice([1e3, 1e4])))
        config["rope_parameters"] = {
            "full_attention": {**kind, "rope_theta": shape.rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.window_theta},
        }
    else:
        config |= {"rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
        config |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}} if stretched else {}
    return shape, config


class Kind(NamedTuple):
    """A family under the name that its published configs have."""

    family: Family
    vary: Callable[[np.random.Generator, DenseShape], tuple[DenseShape, Config]]
    experts: bool = False


KINDS = {
    "gemma3": Kind(dense.GEMMA, _gemma3),
    "llama3": Kind(dense.FAMILIES["llama"], _llama3),
    "mistral": Kind(dense.FAMILIES["llama"], _mistral),
    "mixtral": Kind(dense.FAMILIES["llama"], _mixtral, experts=True),
    "qwen2": Kind(dense.FAMILIES["qwen2"], _layered),
    "qwen3": Kind(dense.FAMILIES["qwen3"], _layered),
    "qwen3moe": Kind(dense.WITH_EXPERTS["qwen3moe"], _qwen3moe, experts=True),
}


def draw(name: str, seed: int, length: int = TEXT, block: int = 1, vocab: int = 0) -> Model:
    """Draw a model; its width is a multiple of its heads, as Hugging Face wants it. ``block``: unit of all widths.
    ``vocab``: its tokens, 0 for any number."""
    kind = KINDS[name]
    shape = dense.draw_shape(seed, kind.family, block)
    shape = replace(shape, vocab=vocab or shape.vocab)
    shape = replace(shape, dim=-(-shape.dim // shape.n_heads) * shape.n_heads)
    if name == "qwen2":  # has no key for it
        shape = replace(shape, head_dim=max(2, shape.dim // shape.n_heads // 2 * 2))
        shape = replace(shape, dim=shape.head_dim * shape.n_heads)
    if kind.experts:
        shape = dense.with_experts(shape, seed, block)
    rng = np.random.default_rng([seed, 9])
    shape, config = kind.vary(rng, shape)
    tensors = dense.draw_tensors(shape, seed, tied=seed % 3 == 0)
    return Model(shape, tensors, config, rng.integers(0, shape.vocab, length).tolist())


def golden(name: str) -> Model:
    """The first small drawn model of a kind that has what the kind may have: a window, stretched rope."""
    for seed in range(200):
        model = draw(name, seed)
        shape = model.shape
        whole = (shape.window or name == "llama3") and (shape.scaling.kind == "linear" or name != "gemma3")
        if whole and shape.vocab < 120 and 2 < shape.head_dim < 64:  # bases of rope do not tell in heads of 2
            return model
    raise AssertionError(name)
