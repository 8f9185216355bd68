"""A trained model's folder: what is written is what was trained, rounded to BF16, and the engine computes with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import PLAIN, ModelShape
from ds4ref.errors import ModelFileError
from ds4ref.nano.checkpoint import to_bf16, tokenizer, write_trained
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.vocab import build_vocabulary
from ds4ref.weights.published import PublishedSource

from .placeholder import tensors

SMALL = replace(SHAPE, n_layers=1, ratios=(PLAIN,), swiglu_limit=(4.0,), vocab=300, n_experts=2)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return tensors(SMALL)


def write(path: Path, weights: dict[str, np.ndarray], shape: ModelShape = SMALL) -> Path:
    words = build_vocabulary(shape.vocab)
    write_trained(path, shape, weights, tokenizer(words.tokens, words.merges))
    return path


def rounded(values: np.ndarray) -> np.ndarray:
    return (to_bf16(values).astype(np.uint32) << 16).view(np.float32)


def test_values_are_those_given_rounded_to_bf16(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    with PublishedSource.open(write(tmp_path / "w", weights)) as source:
        for name, theirs in (("blk.0.attn_q_b.weight", "layers.0.attn.wq_b.weight"), ("output.weight", "head.weight"),
                             ("blk.0.hc_ffn_fn.weight", "layers.0.hc_ffn_fn"),
                             ("blk.0.attn_norm.weight", "layers.0.attn_norm.weight")):  # fmt: skip
            info = source.tensors[name]
            assert info.fmt.name == "BF16"
            values = info.fmt.dequantize(source.raw(name)).reshape(info.shape)
            np.testing.assert_array_equal(values, rounded(weights[theirs]))
        sinks = source.tensors["blk.0.attn_sinks.weight"]
        assert sinks.fmt.name == "F32"
        np.testing.assert_array_equal(source.raw(sinks.name).view("<f4"), weights["layers.0.attn.attn_sink"])
        table = source.raw("blk.0.ffn_gate_tid2eid.weight").view("<i4").reshape(300, 2)
        np.testing.assert_array_equal(table, weights["layers.0.ffn.gate.tid2eid"])


def test_a_model_without_multi_token_prediction(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    plain = {name: values for name, values in weights.items() if not name.startswith("mtp.")}
    folder = write(tmp_path / "w", plain)
    assert json.loads((folder / "config.json").read_text())["num_nextn_predict_layers"] == 0
    with pytest.raises(ModelFileError, match="has no drafter"):
        PublishedSource.open(folder, mtp=True)
