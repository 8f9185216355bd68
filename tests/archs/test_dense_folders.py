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
        # what is lost is lost in the values: of these, as F32, the same logits
        plain = tmp_path / f"{recipe} as f32.gguf"
        assert quantize([str(out), "-o", str(plain), "--recipe", "f32"]) == 0
        with Engine.open(out, numerics="exact") as engine, Engine.open(plain, numerics="exact") as other:
            got, same = engine.logits(IDS), other.logits(IDS)
        assert float(np.abs(got - same).max() / same.std()) < 1e-5


def test_a_head_counts_even_if_the_config_ties_it(tmp_path: Path) -> None:
    """As in transformers 5: lm_head.weight is the head where there is one. A GGUF file made of it has it, too."""
    path, tensors = folder_of(tmp_path / "m", SHAPE, False, tie_word_embeddings=True)
    assert apart(path, SHAPE, tensors) < 1e-5
    assert quantize([str(path), "-o", str(tmp_path / "m.gguf"), "--recipe", "f32"]) == 0
    assert apart(tmp_path / "m.gguf", SHAPE, tensors) < 1e-5
    del tensors["output.weight"]
    assert apart(path, SHAPE, tensors) > 1


HALF_OF = {"original_max_position_embeddings": 64}
STRETCHED = {
    "none": ({}, Scaling("none", 1.0, 0, 32.0, 1.0)),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, Scaling("linear", 4.0, 0, 32.0, 1.0)),
    "yarn, defaults": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, Scaling("yarn", 4.0, 128, 32.0, 1.0)),
    "yarn, all of it": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.5, "beta_fast": 24.0, "beta_slow": 3.0,
                          "original_max_position_embeddings": 96}},
        Scaling("yarn", 2.5, 96, 24.0, 3.0)),
    "yarn, context outside": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, **HALF_OF}, Scaling("yarn", 4.0, 64)),
    "yarn, context twice": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, **HALF_OF}, **HALF_OF}, Scaling("yarn", 4.0, 64)),
    "yarn, another magnitude": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}},
        Scaling("yarn", 4.0, 128, gain=1 / (0.1 * np.log(4.0) + 1))),
    "yarn, two scales": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
        Scaling("yarn", 4.0, 128, gain=1 / (0.1 * np.log(4.0) + 1))),
    "base in the scaling": (
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9e4}}, Scaling("linear", 4.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", STRETCHED)
def test_what_a_config_says_of_the_model(case: str, tmp_path: Path) -> None:
    """Every value reaches its own field, also through a GGUF file made of the folder."""
    changes, scaling = STRETCHED[case]
    path, _ = folder_of(tmp_path / "m", SHAPE, False, **changes)
    theta = changes.get("rope_scaling", {}).get("rope_theta", 1e4)
    assert quantize([str(path), "-o", str(tmp_path / "m.gguf"), "--recipe", "f32"]) == 0
    for model in (path, tmp_path / "m.gguf"):
        with Engine.open(model) as engine:
            gain = engine.shape.scaling.gain
            assert abs(gain - scaling.gain) < 1e-6
            found = replace(engine.shape, scaling=engine.shape.scaling._replace(gain=scaling.gain))
            assert replace(found, name="odd") == replace(SHAPE, scaling=scaling, rope_theta=theta)


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
    "heads that do not share": (False, {"num_key_value_heads": 3}, "has shape [8, 64]"),
    "no key-value heads": (False, {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    "odd heads": (False, {"head_dim": 7}, "rope needs an even one"),
    "more words than rows": (False, {"vocab_size": 300}, "vocab_size is 300, token_embd.weight has 257 rows"),
    "more layers than there are": (False, {"num_hidden_layers": 3}, "blk.2.attn_norm.weight is missing"),
    "fewer layers than there are": (
        False,
        {"num_hidden_layers": 1},
        "model.layers.1.input_layernorm.weight has no place in a llama model",
    ),
    "an unknown key": (False, {"attention_xyz": True}, "attention_xyz is true: unknown here, it may change the model"),
    "an unknown key, nested": (False, {"rope_parameters": {"warp": 2.5}}, "rope_parameters.warp is 2.5: unknown here"),
    "a stretching without its type": (False, {"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor is 2.0: unknown"),
    "two ropes": (
        False,
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 2e4}},
        "rope_parameters.rope_theta is 20000.0: unknown",
    ),
    "two contexts before the scaling": (
        False,
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, **HALF_OF}, "original_max_position_embeddings": 32},
        "original_max_position_embeddings is 32, and 64 where rope is scaled",
    ),
    "one scale of YaRN's magnitude": (
        False,
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}},
        "rope_scaling.mscale is 0.7",
    ),
    "llama3 without an edge": (
        False,
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
        "high_freq_factor is missing",
    ),
    "another pairing": (False, {"rope_interleaved": True}, "rope_interleaved is true, only false is computed"),
    "an encoder": (False, {"is_encoder_decoder": True}, "is_encoder_decoder is true, only false is computed"),
    "windows of another family": (False, {"sliding_window": 64}, "sliding_window is 64: unknown"),
    "weights stored another way": (
        False,
        {"quantization_config": {"quant_method": "hqq", "bits": 4}},
        "quant_method is 'hqq', wanted 'fp8'",
    ),
    "blocks of another size": (
        False,
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        "weight_block_size is [64, 64], wanted [128, 128]",
    ),
    "layers of their own": (
        False,
        {"per_layer_config": {"0": {"hidden_act": "gelu"}}},
        "per_layer_config.0.hidden_act is 'gelu': unknown",
    ),
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


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def in_fp8(path: Path) -> dict[str, np.ndarray]:
    """Make the matrices of a folder's layers FP8 in blocks of 128 x 128; return the values that they then have."""
    from ds4ref.kernels.formats.f8_e4m3 import E4M3
    from ds4ref.weights.safetensors_writer import PlannedTensor, write_file

    tensors, plans, values = load_file(path / "model.safetensors"), [], {}
    for seed, (name, array) in enumerate(tensors.items()):
        values[name] = array
        if "_proj" not in name:
            plans.append(PlannedTensor(name, "F32", array.shape, lambda array=array: array))
            continue
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 256, array.shape, dtype=np.uint8)
        codes[codes % 128 > 100] = 0
        high, wide = (-(-size // 128) for size in array.shape)
        scales = rng.uniform(0.5, 2, (high, wide)).astype(np.float32) / np.float32(600)
        grid = scales[np.arange(array.shape[0])[:, None] // 128, np.arange(array.shape[1]) // 128]
        values[name] = E4M3.table[codes] * grid
        plans.append(PlannedTensor(name, "F8_E4M3", array.shape, lambda codes=codes: codes))
        plans.append(PlannedTensor(name + "_scale_inv", "F32", scales.shape, lambda scales=scales: scales))
    write_file(path / "model.safetensors", plans)
    return values


def test_matrices_in_fp8_blocks(tmp_path: Path) -> None:
    """Rows of queries and keys change their order with the scales of their own blocks, of which the last is shorter."""
    shape = replace(SHAPE, dim=128, ff=256, n_heads=12, n_kv_heads=4, head_dim=16, vocab=130)
    path, _ = folder_of(tmp_path / "m", shape, False, quantization_config=FP8)
    values = in_fp8(path)
    plain = tmp_path / "plain"
    dense.published(plain, shape, {})
    save_file(values, plain / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config))
    logits = []
    for folder in (path, plain):
        with Engine.open(folder, backend="reference", numerics="exact") as engine:
            assert engine.shape.n_heads * engine.shape.head_dim == 192
            logits.append(engine.logits([1, 5, 9, 129, 3]))
    assert np.array_equal(*logits) and logits[0].std() > 0.3
