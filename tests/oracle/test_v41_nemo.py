"""Drawn models of DeepSeek V4.1 with Engram against the whole model of NVIDIA's NeMo Automodel, torch on the CPU.

It reads no ``gate_temp``, and no source of rows may follow the source of candidates. With few heads of the index many
scores are 0, and torch selects any of equal ones. In mode qat two engines may round a number to different neighbours,
which changes everything after it: there only the first positions are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek41.hashing import primes
from ds4ref.archs.deepseek41.shape import ModelShape
from ds4ref.engine import Engine
from tests.v41 import FOLDED, tokenizer

from .conftest import missing
from .test_v41 import BAR, config, draw, weights

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]  # of torch and packages around it
TOKENS, FIRST = 100, 10


def with_tables(shape: ModelShape, rng: np.random.Generator) -> tuple[ModelShape, int]:
    """Give one or two layers of a shape Engram tables; return the least number of a column's rows, too."""
    layers = sorted(rng.choice(shape.n_layers, size=min(shape.n_layers, int(rng.integers(1, 3))), replace=False))
    grams, heads, least = (int(rng.integers(*each)) for each in ((2, 5), (1, 4), (20, 60)))
    rows = primes(least, len(layers), grams - 1, heads).sum((1, 2))
    return replace(
        shape, gate_temp=1.0, index_heads=20, candidate_source=None if shape.candidate_source is None else
        shape.kv_sources[-1], engram_layers=tuple(map(int, layers)), engram_rows=tuple(map(int, rows)),
        engram_grams=grams, engram_heads=heads, engram_dim=32, engram_vocab=FOLDED, engram_pad=int(rng.integers(9)),
    ), least  # fmt: skip


@pytest.fixture(params=["exact", "qat"])
def nemo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """A mode and NeMo's module of the model; in mode exact its caches are not rounded."""
    try:
        import nemo_automodel.components.models.deepseek_v41.attention as attention
        import nemo_automodel.components.models.deepseek_v41.model as module
    except ImportError as error:
        missing(f"{error} (pip install --no-deps nemo_automodel==0.7.0)")
    import torch

    if request.param == "exact":
        monkeypatch.setattr(attention, "quantize_cache", lambda values, **_: values)
    with torch.compiler.set_stance("force_eager"):  # it would compile each shape anew
        yield request.param, module


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed > 3 else []) for seed in range(20)]
)
def test_drawn_models_have_the_logits_of_nemo(nemo: tuple[str, Any], tmp_path: Path, seed: int) -> None:
    import torch
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
    from safetensors.numpy import save_file
    from transformers import PreTrainedTokenizerFast

    mode, module = nemo
    rng = np.random.default_rng([47, seed])
    shape, least = with_tables(draw(rng), rng)
    ids = rng.integers(0, shape.vocab, TOKENS)
    tensors = {name: np.ascontiguousarray(values) for name, values in weights(shape, rng).items()}
    text = config(shape) | {
        "engram_layer_ids": list(shape.engram_layers), "engram_num_embeddings": list(shape.engram_rows),
        "engram_vocab_size": least, "engram_max_ngram_size": shape.engram_grams, "engram_n_heads": shape.engram_heads,
        "engram_head_dim": shape.engram_dim, "engram_pad_token_id": shape.engram_pad,
        "engram_compressed_vocab_size": shape.engram_vocab, "dtype": "float32",
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v41", "text_config": text}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer()))

    backend = BackendConfig(attn="eager", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch",
                            enable_hf_state_dict_adapter=True)  # fmt: skip
    theirs = module.DeepseekV41ForCausalLM(
        DeepseekV41Config(text_config=text, vision_config={"num_hidden_layers": 0}),
        backend=backend,
        tokenizer=PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")),
    )
    loaded = theirs.state_dict_adapter.from_hf({name: torch.tensor(values) for name, values in tensors.items()})
    lacking, unknown = theirs.load_state_dict(loaded, strict=False)
    assert not unknown and {name.rpartition(".")[2] for name in lacking} <= {"bias_vl"}
    with torch.no_grad():
        want = theirs(torch.tensor(ids[None])).logits[0].numpy()
    with Engine.open(tmp_path, numerics=mode, threads=1) as engine:
        chunked = engine.session(40_000).extend(ids.tolist(), chunk=int(rng.integers(2, 40)))
        decoding = engine.session(TOKENS + 1)
        decoded = np.stack([decoding.eval(int(token)) for token in ids])
    for got in (chunked, decoded):
        off = np.abs(got - want).max(1) > BAR
        assert not off[: TOKENS if mode == "exact" else FIRST].any(), shape
