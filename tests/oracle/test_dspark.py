"""The DSpark drafter against Hugging Face's decoder layers, on drawn shapes and weights.

transformers has no drafter; its layers, norms and head of streams are given the rows and positions of a block, with
nothing masked. Fusion, pairs and confidence are plain products here.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

from ds4ref.archs.deepseek4.dspark import Drafter, drafter_slots
from ds4ref.archs.deepseek4.forward import Model
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.tensors import Slot
from ds4ref.archs.deepseek4.weights import Weights
from ds4ref.backends import load_backend
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.numerics import numerics
from ds4ref.weights.writer import TensorSpec, write_gguf

from . import hf
from .modelgen import GAIN, draw_shape

pytestmark = pytest.mark.oracle


class Rows:
    """A cache of a layer that holds given rows; those of the block are added for one pass."""

    def __init__(self, rows: torch.Tensor):
        self.rows = rows[None, None]

    def update(self, keys: torch.Tensor, *rest: Any, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat([self.rows, keys], 2)
        return keys, keys


def drawn(slot: Slot, rng: np.random.Generator) -> np.ndarray:
    shape = slot.dims[::-1]
    if "norm" in slot.attr:
        return rng.uniform(0.5, 1.5, shape)
    gain = 2.0 if slot.part == "experts" else GAIN.get(slot.attr, 1.0)
    return rng.normal(0, gain / slot.dims[0] ** 0.5 if len(slot.dims) > 1 else 0.5, shape)


def angles(shape: ModelShape, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    half = shape.rope_dim // 2
    phi = positions[:, None] * shape.rope_theta ** (-np.arange(half) / half)
    return torch.tensor(np.cos(phi), dtype=torch.float32), torch.tensor(np.sin(phi), dtype=torch.float32)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = 2 * cos.shape[-1]
    a, b = x[..., -width::2], x[..., -width + 1 :: 2]
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-width], pairs], -1)


class Theirs:
    """The drafter made of Hugging Face's modules."""

    def __init__(self, shape: ModelShape, weights: dict[str, np.ndarray], tables: tuple[np.ndarray, np.ndarray]):
        self.shape, self.embed, self.head = shape, *map(torch.from_numpy, tables)
        metadata = {key.removeprefix(hf.PREFIX): value for key, _, value in shape.metadata()}
        self.config = config = hf.config_from_metadata(metadata)
        config._experts_implementation = "eager"
        self.w = {name: torch.from_numpy(values) for name, values in weights.items()}
        self.layers = []
        for stage in range(shape.n_layers):
            layer, p = theirs.DeepseekV4DecoderLayer(config, stage).eval().requires_grad_(False), f"mtp.{stage}."
            state = {
                target: self.w[p + ours] for ours, target in hf.LAYER_NAMES.items() if p + ours in self.w
            }  # fmt: skip
            halves = [self.w[f"{p}ffn_{half}_exps.weight"] for half in ("gate", "up")]
            state["mlp.experts.gate_up_proj"] = torch.cat(halves, 1)
            layer.load_state_dict(state, strict=True)
            self.layers.append(layer)
        last = f"mtp.{shape.n_layers - 1}."
        self.collapse = theirs.DeepseekV4HyperHead(config)
        self.collapse.load_state_dict({f"hc_{part}": self.w[f"{last}hc_head_{part}.weight"]
                                       for part in ("fn", "base", "scale")})  # fmt: skip
        self.last = last

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        norm = theirs.DeepseekV4RMSNorm(len(weight), eps=self.shape.rms_eps)
        norm.weight.data = weight
        return norm(x)

    @torch.no_grad()
    def guess(self, means: np.ndarray, anchor: int, block: int, noise: int) -> tuple[list[int], Any, Any]:
        s, w, count = self.shape, self.w, len(means)
        first = max(0, count - s.window)
        fused = torch.from_numpy(means.reshape(count, -1)) @ w["mtp.0.main_proj.weight"].T
        fused = self.normed(fused, w["mtp.0.main_norm.weight"])[first:]
        places = np.arange(count, count + block)
        rope = tuple(part[None] for part in angles(s, places))
        X = self.embed[[anchor] + [noise] * (block - 1)][:, None].expand(-1, s.hc, -1)[None].contiguous()
        for layer in self.layers:
            attn = layer.self_attn
            rows = rotated(attn.kv_norm(attn.kv_proj(fused)), *angles(s, np.arange(first, count)))
            X = layer(X, position_embeddings={"main": rope, "compress": rope}, attention_mask=None,
                      position_ids=torch.from_numpy(places)[None], cache=Rows(rows))  # fmt: skip
        hidden = self.collapse(X)[0]
        base = self.normed(hidden, w[self.last + "norm.weight"]) @ self.head.T
        pairs, expand = (w[f"{self.last}markov_head.markov_w{i}.weight"] for i in (1, 2))
        tokens, logits, chances = [anchor], [], []
        for i in range(block):
            pair = pairs[tokens[-1]]
            logits.append(base[i] + expand @ pair)
            state = torch.cat([hidden[i], pair])
            chances.append(torch.sigmoid(w[self.last + "confidence_head.proj.weight"][0] @ state))
            tokens.append(int(logits[-1].argmax()))
        return tokens[1:], torch.stack(logits).numpy(), torch.stack(chances).numpy()


@pytest.mark.parametrize("seed", range(20))
def test_drawn_drafters(seed: int, tmp_path: Path) -> None:
    """Blocks of 1 to 7 tokens, with fewer rows than a window before them, and with more; ids equal, logits to 1e-4."""
    rng = np.random.default_rng([seed, 44])
    stages, block, rank = 1 + seed % 3, int(rng.integers(1, 8)), 32 * int(rng.integers(1, 3))
    model_shape = draw_shape(seed)
    model_shape = replace(model_shape, window=max(model_shape.window, 24))
    shape = replace(model_shape, n_layers=stages, n_hash_layers=0, ratios=(0,) * stages,
                    swiglu_limit=model_shape.swiglu_limit[:1] * stages)  # fmt: skip
    slots = drafter_slots(shape, stages, stages, rank)
    weights = {slot.name: np.ascontiguousarray(drawn(slot, rng), np.float32) for slot in slots}
    tables = [rng.normal(0, gain, (shape.vocab, shape.dim)).astype(np.float32)
              for gain in (1.0, 2.5 * shape.dim**-0.5)]  # fmt: skip
    noise = int(rng.integers(shape.vocab))
    path = tmp_path / "d.gguf"
    metadata = [("general.architecture", "string", "deepseek4-dspark"), ("deepseek4.dspark.block_size", "u32", block),
                ("deepseek4.dspark.noise_token_id", "u32", noise),
                ("deepseek4.dspark.target_layers", "u32[]", list(range(stages)))]  # fmt: skip
    with write_gguf(path, metadata, [TensorSpec(slot.name, "F32", slot.dims) for slot in slots]) as out:
        for name, values in weights.items():
            out.write(name, values)
    unused: Any = None
    embed, head = (Matrix(FORMATS["F32"].name, table.view(np.uint8), *table.shape) for table in tables)
    model = Model(shape, Weights(token_embd=embed, output=head, output_norm=unused, output_hc_fn=unused,
                                 output_hc_base=unused, output_hc_scale=unused, layers=[]),
                  load_backend(("reference", "cpu")[seed % 2], 1), numerics("exact"))  # fmt: skip
    oracle = Theirs(shape, weights, (tables[0], tables[1]))
    with closing(Drafter.open(path, model)) as drafter:
        for count, anchor in itertools.product((3, shape.window, 3 * shape.window + 5), (7, 31)):
            means = rng.standard_normal((count, stages, shape.dim)).astype(np.float32)
            rows = drafter.rows()
            for start in range(0, count, 50):
                drafter.inject(means[start : start + 50], rows)
            mine, (tokens, logits, chances) = drafter.guess(anchor, rows), oracle.guess(means, anchor, block, noise)
            assert mine.tokens == tokens
            assert np.abs(mine.logits - logits).max() < 1e-4 * np.abs(logits).max()
            np.testing.assert_allclose(mine.confidence, chances, atol=1e-4)
