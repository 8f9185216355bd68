"""DeepSeek V4's folders that are another model than Flash, or that say the same in other words: every key and tensor
counts, and what is not computed is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.published import INERT, metadata
from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError
from ds4ref.nano import checkpoint
from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.accounting import leaves, settle
from ds4ref.weights.config import Config
from ds4ref.weights.inert import CONFIG
from ds4ref.weights.published import Metadata, PublishedSource, _check_quantization
from ds4ref.weights.safetensors import INDEX, Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file, write_json

KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}


def shape_of(tmp_path: Path, **changes) -> ModelShape:
    """The shape that a config.json of Flash with these changes makes, all keys accounted for; None removes a key."""
    values = {k: v for k, v in {**checkpoint.config(FLASH), **changes}.items() if v is not None}
    config = Config(tmp_path / "config.json", values)
    entries = Metadata(metadata(config, Checkpoint(str(tmp_path), tmp_path)))
    _check_quantization(config, [128, 128])
    settle(dict(leaves(values)), config.read, (*CONFIG, *INERT)).check(config.path)
    return ModelShape.from_metadata(SimpleNamespace(path=tmp_path, metadata=entries))  # type: ignore[arg-type]


SAID = {
    "as published": {},
    "more than it needs": {
        "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "num_nextn_predict_layers": 1,
        "topk_method": "noaux_tc", "transformers_version": "4.57.1", "use_cache": True,
        "compress_ratios": [*FLASH.ratios, 0]},
    "layers by name": {"compress_ratios": None, "layer_types": [KINDS[r] for r in FLASH.ratios]},
    "layers twice": {"layer_types": [KINDS[r] for r in FLASH.ratios], "compress_rates": {KINDS[4]: 4, KINDS[128]: 128}},
    "hash layers by name": {"num_hash_layers": None, "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40},
    "hash layers twice": {"mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40},
    "rotary channels twice": {"partial_rotary_factor": 64 / 512},
    "magnitude 1": {"rope_scaling": {**YARN, "attention_factor": 1.0}},
    "rope in two": {
        "rope_scaling": None, "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
            "compress": {**YARN, "rope_type": "yarn", "rope_theta": 160000.0, "attention_factor": 1.0,
                         "partial_rotary_factor": 0.125}}},
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_config_json_of_flash_in_every_form(tmp_path: Path, case: str) -> None:
    assert replace(shape_of(tmp_path, **SAID[case]), name="") == replace(FLASH, name="")


TWO = SAID["rope in two"]["rope_parameters"]
UNLIKE = {
    "another magnitude": ({"rope_scaling": {**YARN, "attention_factor": 1.2}}, "rope_scaling.attention_factor is 1.2"),
    "YaRN's own magnitude": (
        {"rope_scaling": None, "rope_parameters": {
            **TWO, "compress": {k: v for k, v in TWO["compress"].items() if k != "attention_factor"}}},
        "rope_parameters.compress.attention_factor is missing"),
    "a magnitude by scales": ({"rope_scaling": {**YARN, "mscale": 1.0}}, "rope_scaling.mscale is 1.0: unknown here"),
    "YaRN everywhere": (
        {"rope_scaling": None, "rope_parameters": {**TWO, "main": {**TWO["main"], "rope_type": "yarn"}}},
        "rope_parameters.main.rope_type is not 'default'"),
    "two names of a rope": (
        {"rope_scaling": {**YARN, "rope_type": "default"}}, "type is 'yarn', rope_type is 'default'"),
    "two bases": (
        {"rope_scaling": None, "rope_parameters": {**TWO, "main": {**TWO["main"], "rope_theta": 5e4}}},
        "rope_parameters.main.rope_theta is 50000, rope_theta is 10000"),
    "two ropes": ({"rope_parameters": TWO}, "rope_parameters.main.rope_type is 'default': unknown here"),
    "half the rotary channels": ({"partial_rotary_factor": 0.0625}, "partial_rotary_factor makes 32 rotary channels"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu', wanted 'silu'"),
    "another router": ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'"),
    "other layers by name": (
        {"layer_types": [KINDS[r] for r in FLASH.ratios[:-1]] + [KINDS[128]]},
        "layer_types is not what compress_ratios says of layer 42"),
    "fewer layers by name": ({"layer_types": [KINDS[0]] * 42}, "layer_types has 42 entries for 43 layers"),
    "other rates": ({"compress_rates": {KINDS[4]: 8}}, "compress_rates.compressed_sparse_attention is not 4"),
    "older rates": ({"compress_rate_csa": 8}, "compress_rate_csa is 8: unknown here"),
    "other hash layers by name": (
        {"mlp_layer_types": ["hash_moe"] * 4 + ["moe"] * 39}, "num_hash_layers is 3, mlp_layer_types has 4"),
    "biases": ({"attention_bias": True}, "attention_bias is true, only false is computed here"),
    "biases of experts": ({"mlp_bias": True}, "mlp_bias is true, only false is computed here"),
    "groups of experts": ({"n_group": 8}, "n_group is 8, only 1 is computed here"),
    "layers without experts": ({"first_k_dense_replace": 1}, "first_k_dense_replace is 1, only 0 is computed here"),
    "another choice": ({"topk_method": "greedy"}, "topk_method is 'greedy', only \"noaux_tc\" is computed here"),
    "the width of experts by another name": ({"intermediate_size": 1024}, "intermediate_size is 1024: unknown here"),
    "a clamp of another name": ({"swiglu_alpha": 1.7}, "swiglu_alpha is 1.7: unknown here, it may change the model"),
    "scales of inputs": (
        {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
        "quantization_config.activation_scheme is 'static', wanted 'dynamic'"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNLIKE)
def test_config_json_of_another_model(tmp_path: Path, case: str) -> None:
    changes, says = UNLIKE[case]
    with pytest.raises(ModelFileError) as caught:
        shape_of(tmp_path, **changes)
    assert says in str(caught.value) and "\n" not in str(caught.value)


FOREIGN = (
    "layers.0.attn.wq_a.bias",
    "layers.9.attn_norm.weight",
    "layers.0.ffn.experts.99.w1.weight",
    "layers.0.attn.wq_a.weight_scale",
    "layers.0.attn.compressor.ape",
    "head.bias",
    "blk.0.attn_norm.weight",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, nano_path: str) -> Path:
    """The embedded model as DeepSeek would publish it, in shards."""
    path = tmp_path_factory.mktemp("published") / "nano"
    with open_source(nano_path) as source:
        write_checkpoint(source, path, shard_bytes=3 << 20)
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_tensors_of_another_model(folder: Path, tmp_path: Path, name: str) -> None:
    """In a shard of their own; the block for multi-token prediction is left out."""
    for extra, says in (("mtp.0.x.weight", None), (name, "has no place in a deepseek")):
        changed = tmp_path / extra
        shutil.copytree(folder, changed, copy_function=os.link)
        index = json.loads((changed / INDEX).read_text())
        index["weight_map"][extra] = "more.safetensors"
        (changed / INDEX).unlink()
        write_json(changed / INDEX, index)
        write_file(
            changed / "more.safetensors", [PlannedTensor(extra, "F32", (1, 1), lambda: np.ones((1, 1), np.float32))]
        )
        if says is None:
            with PublishedSource.open(changed) as source:
                reason = "the drafter is a model of its own"
                assert source.tensor_account().inert == {extra: reason}
        else:
            with pytest.raises(ModelFileError) as caught:
                Engine.open(changed, backend="reference")
            assert says in str(caught.value) and "\n" not in str(caught.value)
