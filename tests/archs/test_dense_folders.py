"""Folders of Llama and Qwen3 that are odd or lie: heads tied or not, eight query heads for one of keys, odd
vocabularies, config values that would be another model, shards that disagree; read, quantized, or refused in one line.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ds4ref.archs.dense.shape import DenseShape, Scaling
from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError
from ds4ref.weights import open_source

from . import dense

SHAPE = DenseShape(
    dense.FAMILIES["llama"], n_layers=2, dim=64, ff=96, n_heads=8, n_kv_heads=1, head_dim=8, vocab=257,
    trained_ctx=128, rope_theta=1e4, rms_eps=1e-5, name="odd",
)  # fmt: skip
IDS = [1, 5, 9, 200, 3, 256]


def folder_of(folder: Path, shape: DenseShape, tied: bool, **more: Any) -> tuple[Path, dense.Tensors]:
    """A folder, and its weights."""
    tensors = dense.draw_tensors(shape, 1, tied)
    return dense.published(folder, shape, tensors, **more), tensors


def apart(path: Path, shape: DenseShape, tensors: dense.Tensors) -> float:
    """How far the engine is from the weights in Hugging Face's convention: rope in halves for every family."""
    wanted = dense.logits_of(replace(shape, family=replace(shape.family, halves=True)), tensors, IDS)
    with Engine.open(path, numerics="exact") as engine:
        return float(np.abs(engine.logits(IDS) - wanted).max() / wanted.std())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", dense.FAMILIES)
def test_eight_heads_on_one_and_an_odd_vocabulary(family: str, tied: bool, tmp_path: Path) -> None:
    """Read, and through every recipe: rows of 64 and 96 fit no block of 256, so wider formats take over."""
    shape = replace(SHAPE, family=dense.FAMILIES[family], head_dim=16 if family == "qwen3" else 8)
    path, tensors = folder_of(tmp_path / "m", shape, tied)
    assert apart(path, shape, tensors) < 1e-5
    for recipe, bar in (("f32", 1e-5), ("q8", 0.3), ("q4", 1.5)):
        out = tmp_path / f"{recipe}.gguf"
        assert quantize([str(path), "-o", str(out), "--recipe", recipe]) == 0
        assert apart(out, shape, tensors) < bar
        with open_source(out) as source:
            assert ("output.weight" in source.tensors) is not tied


def test_a_head_that_the_config_ties_is_not_read(tmp_path: Path) -> None:
    """As Hugging Face does it: the embedding is the head, whatever lm_head.weight holds."""
    path, tensors = folder_of(tmp_path / "m", SHAPE, False, tie_word_embeddings=True)
    del tensors["output.weight"]
    assert apart(path, SHAPE, tensors) < 1e-5


STRETCHED = {
    "none": ({}, Scaling("none", 1.0, 0, 32.0, 1.0)),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, Scaling("linear", 4.0, 0, 32.0, 1.0)),
    "yarn, defaults": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, Scaling("yarn", 4.0, 128, 32.0, 1.0)),
    "yarn, all of it": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.5, "beta_fast": 24.0, "beta_slow": 3.0,
                          "original_max_position_embeddings": 96}},
        Scaling("yarn", 2.5, 96, 24.0, 3.0)),
    "llama3, newer": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.5,
                             "original_max_position_embeddings": 64, "rope_theta": 9e4}},
        Scaling("llama3", 8.0, 64, 4.0, 1.5)),
}  # fmt: skip


@pytest.mark.parametrize("case", STRETCHED)
def test_what_a_config_says_of_the_model(case: str, tmp_path: Path) -> None:
    """Every value reaches its own field, also through a GGUF file made of the folder."""
    changes, scaling = STRETCHED[case]
    path, _ = folder_of(tmp_path / "m", SHAPE, False, **changes)
    theta = changes.get("rope_parameters", {}).get("rope_theta", 1e4)
    assert quantize([str(path), "-o", str(tmp_path / "m.gguf"), "--recipe", "f32"]) == 0
    for model in (path, tmp_path / "m.gguf"):
        with Engine.open(model) as engine:
            assert replace(engine.shape, name="odd") == replace(SHAPE, scaling=scaling, rope_theta=theta)


def test_a_cached_token_takes_as_many_bytes_as_its_rows(tmp_path: Path) -> None:
    """Two layers of 8 keys and 8 values: 4 bytes each, or 2 where rows are halves (docs/explanation/dense.md)."""
    path, _ = folder_of(tmp_path / "m", SHAPE, True)
    for numerics, width in (("exact", 4), ("ds4", 2)):
        with Engine.open(path, numerics=numerics) as engine:
            session = engine.session(40)
            session.sync(IDS)
            rows = sum(part[:6].nbytes for part in session._cache.buffers())
            assert session.cache_bytes == rows == 2 * 16 * 6 * width
            assert session.snapshot().shared[1] == rows and session._cache.snapshot().own_bytes == 0


CONFIGS = {
    "no head, not tied": (True, {"tie_word_embeddings": False}, "lm_head.weight is missing"),
    "biases of attention": (False, {"attention_bias": True}, "attention_bias is true"),
    "biases of the feed-forward": (False, {"mlp_bias": True}, "mlp_bias is true"),
    "sliding windows": (False, {"use_sliding_window": True}, "use_sliding_window is true"),
    "sliding layers": (False, {"layer_types": ["sliding_attention"] * 2}, "layer_types has 'sliding_attention'"),
    "heads turned in part": (False, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is not 1"),
    "the same, newer": (False, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary"),
    "another activation": (False, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "another stretching": (False, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    "heads that do not share": (False, {"num_key_value_heads": 3}, "has rows [8, 64]"),
    "no key-value heads": (False, {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    "odd heads": (False, {"head_dim": 7}, "rope needs an even one"),
    "more words than rows": (False, {"vocab_size": 300}, "vocab_size is 300, token_embd.weight has 257 rows"),
    "more layers than there are": (False, {"num_hidden_layers": 3}, "blk.2.attn_norm.weight is missing"),
    "fewer layers than there are": (False, {"num_hidden_layers": 1}, "model.layers.1."),
    "a number as text": (False, {"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5', wanted a number"),
    "another family": (False, {"model_type": "llama4"}, "model_type is 'llama4', not one of"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs_that_mean_another_model(case: str, tmp_path: Path) -> None:
    tied, changes, says = CONFIGS[case]
    path, _ = folder_of(tmp_path / "m", SHAPE, tied, **changes)
    with pytest.raises(ModelFileError) as found:
        Engine.open(path)
    assert says in str(found.value) and "\n" not in str(found.value)


def test_shards_that_disagree(tmp_path: Path) -> None:
    """The same tensor in two of them; an index that names the wrong one."""
    path, tensors = folder_of(tmp_path / "m", SHAPE, False, shard_bytes=40000)
    assert apart(path, SHAPE, tensors) < 1e-5
    index = path / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    first, second = sorted(path.glob("*.safetensors"))[:2]
    name = next(name for name, shard in whole["weight_map"].items() if shard == first.name)
    index.write_text(json.dumps({**whole, "weight_map": {**whole["weight_map"], name: second.name}}))
    with pytest.raises(ModelFileError, match=f"'{name}' is not in {second.name}"):
        Engine.open(path)
    index.write_text(json.dumps(whole))
    save_file({**load_file(second), name: load_file(first)[name]}, second)
    with pytest.raises(ModelFileError, match=f"'{name}' is also in"):
        Engine.open(path)
