"""Folders that Hugging Face saved, with every kind of stretched rope, in mode exact against Hugging Face.

The bars are those of DeepSeek's drawn models, scaled to the logits at hand; no choices are made on the way, so every
token list is fair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.dense.shape import DenseShape
from ds4ref.engine import Engine

from ..archs import dense
from .compare import difference
from .conftest import missing
from .test_hf_live import BAR_STD, BARS

pytestmark = pytest.mark.oracle


def draw(family: str, seed: int) -> DenseShape:
    """A drawn shape that Hugging Face takes: its width is a multiple of the heads."""
    shape = dense.draw_shape(seed, dense.FAMILIES[family])
    return replace(shape, dim=-(-shape.dim // shape.n_heads) * shape.n_heads)


@dataclass
class Folder:
    """A checkpoint as Hugging Face saves it, its logits of ``ids``, and how far its float32 is from its float64."""

    path: Path
    ids: list[int]
    logits: np.ndarray
    noise: float = 0.0

    @property
    def bar(self) -> float:
        length = next(length for length in BARS if length >= len(self.ids))
        return max(BARS[length] * float(self.logits.std()) / BAR_STD, 2 * self.noise)


def saved(folder: Path, family: str, shape: DenseShape, seed: int, tied: bool, length: int, **more: Any):
    """A random model of this shape, made, saved and run by transformers."""
    try:
        import torch
        import transformers
    except ImportError:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{name}Config")(
        hidden_size=shape.dim, intermediate_size=shape.ff, num_hidden_layers=shape.n_layers, vocab_size=shape.vocab,
        num_attention_heads=shape.n_heads, num_key_value_heads=shape.n_kv_heads, head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_eps, rope_theta=shape.rope_theta, max_position_embeddings=shape.trained_ctx,
        tie_word_embeddings=tied, attention_bias=False, bos_token_id=0, eos_token_id=0, pad_token_id=None,
        attn_implementation="eager", **more,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            gain = 2.5 if "lm_head" in key or "q_proj" in key or "k_proj" in key else 1.0
            if value.ndim == 1:
                value.copy_(1 + 0.2 * torch.randn_like(value))
            elif "embed" in key:
                value.normal_(std=1.0 if not tied else 2.5 / shape.dim**0.5)
            else:
                value.normal_(std=gain / value.shape[1] ** 0.5)
        path = folder / f"{family}{seed}"
        model.save_pretrained(path)
        ids = np.random.default_rng(seed).integers(0, shape.vocab, length).tolist()
        logits = model(torch.tensor([ids])).logits[0].numpy()
    return Folder(path, ids, logits)


def agrees(engine: Engine, wanted: Folder) -> None:
    """Prefill, chunks and decode."""
    bar, ids = wanted.bar, wanted.ids
    whole = engine.session(len(ids) + 1).extend(ids)
    chunks, decoded = engine.session(len(ids) + 1), engine.session(len(ids) + 1)
    cut = np.concatenate([chunks.extend(ids[a:b]) for a, b in ((0, 3), (3, 20), (20, len(ids)))])
    last = np.array([decoded.eval(token) for token in ids])
    for got in (whole, cut, last):
        found = difference(got, wanted.logits)
        assert found.max <= bar and found.top1 == 1, found


STRETCHED = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
]  # fmt: skip


@pytest.mark.parametrize("family", list(dense.FAMILIES))
@pytest.mark.parametrize("scaling", STRETCHED, ids=lambda s: s["rope_type"])
def test_stretched_rope(family: str, scaling: dict[str, Any], tmp_path: Path) -> None:
    shape = replace(draw(family, 41), head_dim=32, rope_theta=1e4)
    # older transformers take ``rope_scaling``, newer ones put the base in as well
    wanted = saved(tmp_path, family, shape, 41, False, 300, rope_scaling={**scaling, "rope_theta": 1e4})
    with Engine.open(wanted.path, numerics="exact") as engine:
        agrees(engine, wanted)
