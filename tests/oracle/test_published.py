"""DeepSeek V4 from its own checkpoint layout, against Hugging Face on the same folder.

Hugging Face reads config.json, names, FP8 and FP4 by itself (``FineGrainedFP8Config(dequantize=True)``); what it makes
of them, it computes in float32. Nothing of ours lies between the folder and its logits. Bars and the drawing of token
lists are those of ``test_hf_live``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.published import metadata
from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.engine import Engine
from ds4ref.nano import random_path
from ds4ref.nano.checkpoint import config, write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.config import Config
from ds4ref.weights.published import Metadata
from ds4ref.weights.safetensors import CONFIG, INDEX, Checkpoint

from .compare import difference
from .conftest import missing

pytestmark = pytest.mark.oracle

BARS = {5: 1e-4, 40: 2e-4, 150: 2e-4}
BAR_STD = 2.6
LEAST_MARGIN = 2e-5


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder as an ``hf.Oracle``."""
    try:
        import torch
        from transformers import DeepseekV4ForCausalLM, FineGrainedFP8Config
        from transformers.quantizers import quantizer_finegrained_fp8
    except ImportError as error:
        missing(f"no transformers that knows FP8 checkpoints: {error}")
    from .hf import Oracle

    # It asks for a package that dequantizing on the CPU has no use for.
    monkeypatch.setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda *_, **__: True)
    model = DeepseekV4ForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=FineGrainedFP8Config(dequantize=True),
    )
    model.config._experts_implementation = "eager"
    # It expands to bfloat16, which holds an E4M3 or E2M1 times a power of two exactly; float32 is for computing.
    return Oracle(model.config, model.float().eval().requires_grad_(False), os.fspath(folder))


class Published:
    """A folder, what Hugging Face says of it, and token lists on which its choices are well posed."""

    def __init__(self, folder: Path, oracle: Any):
        from .modelgen import draw_ids

        self.folder, self.oracle = folder, oracle
        self.draw: Callable[[int], list[int]] = lru_cache(maxsize=None)(
            lambda length: (
                draw_ids(
                    lambda ids: oracle.margin(oracle.record(ids)), oracle.config.vocab_size, length, 31, LEAST_MARGIN
                ).ids
            )
        )
        self.logits: Callable[[int], np.ndarray] = lru_cache(maxsize=None)(lambda n: oracle.logits(self.draw(n)))

    def bar(self, length: int) -> float:
        return BARS[length] * float(self.logits(length).std()) / BAR_STD


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The embedded model, in shards."""
    folder = tmp_path_factory.mktemp("published") / "nano"
    with open_source(random_path()) as source:
        write_checkpoint(source, folder, shard_bytes=4 << 20)
    assert (folder / INDEX).exists()
    with pytest.MonkeyPatch.context() as patch:
        return Published(folder, load(folder, patch))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("length", list(BARS))
def test_prefill_chunks_and_decode(small: Published, backend: str, length: int) -> None:
    ids = small.draw(length)
    with Engine.open(small.folder, backend=backend, numerics="exact", threads=2) as engine:
        formats = {info.fmt.name for info in engine.source.tensors.values()}
        assert {"F8_E4M3", "MXFP4", "BF16", "F32", "I32"} <= formats
        ways = {"prefill": engine.session(length + 1).extend(ids)}
        if length <= 40:
            ways["one by one"] = engine.session(length + 1).extend(ids, one_by_one=True)
            session = engine.session(length + 1)
            ways["chunks"] = np.concatenate([session.extend(ids[:3]), session.extend(ids[3:])])
    for way, logits in ways.items():
        found = difference(logits, small.logits(length))
        print(f"{backend}, {length} tokens, {way}: {found}")
        assert found.max <= small.bar(length) and found.top1 == 1, (way, found)


def test_tensors_are_what_hugging_face_makes_of_them(small: Published) -> None:
    """One matrix of each kind, value for value."""
    torch = pytest.importorskip("torch")
    state = small.oracle.model.state_dict()
    names = {
        "blk.3.attn_q_b.weight": "model.layers.3.self_attn.q_b_proj.weight",
        "blk.2.indexer.attn_q_b.weight": "model.layers.2.self_attn.compressor.indexer.q_b_proj.weight",
        "blk.4.ffn_down_exps.weight": "model.layers.4.mlp.experts.down_proj",
        "blk.5.ffn_up_shexp.weight": "model.layers.5.mlp.shared_experts.up_proj.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.1.ffn_gate_tid2eid.weight": "model.layers.1.mlp.gate.tid2eid",
    }
    with open_source(small.folder) as source:
        for ours, theirs in names.items():
            info = source.tensors[ours]
            values = info.fmt.dequantize(source.raw(ours)).reshape(info.shape)
            np.testing.assert_array_equal(values, state[theirs].to(torch.float32).numpy(), err_msg=ours)


@pytest.mark.parametrize("seed", [None, 3, 4, 5])
def test_a_config_that_hugging_face_saves(tmp_path: Path, seed: int | None) -> None:
    """What it makes of DeepSeek's config.json and writes again, in its own words, is the same shape."""
    transformers = pytest.importorskip("transformers")
    from .modelgen import draw_shape

    shape = FLASH if seed is None else draw_shape(seed)
    saved = tmp_path / "saved"
    transformers.DeepseekV4Config(**config(shape)).save_pretrained(saved)
    values = json.loads((saved / CONFIG).read_text())
    assert "compress_ratios" not in values and "layer_types" in values, "this is another form"
    entries = Metadata(metadata(Config(saved / CONFIG, values), Checkpoint(str(saved), saved)))
    found = ModelShape.from_metadata(SimpleNamespace(path=saved, metadata=entries))
    assert replace(found, name="") == replace(shape, name="")
