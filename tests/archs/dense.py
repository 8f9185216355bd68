"""Dense decoders for tests: drawn shapes, random weights, model files of them, and the pass in plain NumPy.

``logits_of`` is written from the papers, in float64 and token by token, and shares nothing with the engine: it is what
Llama and Qwen3 are compared with where no other implementation is installed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ds4ref.archs.dense.families import GEMMA3, LLAMA, QWEN2, QWEN3, QWEN3_MOE
from ds4ref.archs.dense.shape import DenseShape, Family
from ds4ref.archs.dense.weights import slots
from ds4ref.kernels.formats import FORMATS
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder
from ds4ref.weights.writer import write_gguf

GEMMA = GEMMA3.family
FAMILIES = {family.family.name: family.family for family in (LLAMA, QWEN2, QWEN3)}
WITH_EXPERTS = {family.family.name: family.family for family in (LLAMA, QWEN3_MOE)}
Tensors = dict[str, np.ndarray]
MODEL_PARTS = ("model.embed_tokens", "model.norm", "lm_head")
LAYER_PARTS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
"""Modules of transformers' LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM."""
GEMMA_PARTS = (
    ("post_attention_norm", "post_attention_layernorm"), ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)  # fmt: skip
EXPERT_PARTS = {
    "llama": ("block_sparse_moe.gate", "block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3",
              "block_sparse_moe.experts.{}.w2"),
    "qwen3moe": ("mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"),
}  # fmt: skip
"""Router, gate, up and down matrices of an expert, in Mixtral's and Qwen3's checkpoints."""


def draw_shape(seed: int, family: Family, block: int = 1, sharing: int | None = None) -> DenseShape:
    """A small model of odd sizes, multiples of ``block`` where rows of a format need it; ``sharing`` query heads for
    one of keys and values."""
    rng = np.random.default_rng([seed, len(family.name)])
    shared = int(rng.integers(1, 4))
    sharing = int(rng.integers(1, 9)) if sharing is None else sharing
    head_dim = int(rng.choice([2, 6, 10, 16, 22, 64])) if block == 1 else block
    odd = [int(size) * block for size in rng.integers(3 if block == 1 else 1, 30 if block == 1 else 4, 2)]
    heads = shared * sharing
    dim = heads * head_dim if family.name == "llama" and rng.integers(2) else odd[0] + block * 4
    return DenseShape(
        family,
        n_layers=int(rng.integers(1, 4)),
        dim=dim,
        ff=odd[1] + block,
        n_heads=heads,
        n_kv_heads=shared,
        head_dim=head_dim,
        vocab=int(rng.integers(40, 300)),
        trained_ctx=2048,
        rope_theta=float(rng.choice([1e4, 5e5, 1e6])),
        rms_eps=float(rng.choice([1e-5, 1e-6])),
        name=f"drawn {seed}",
    )


def with_experts(shape: DenseShape, seed: int, block: int = 1) -> DenseShape:
    """The shape with experts instead of the feed-forward, those of a llama as wide as its feed-forward."""
    rng = np.random.default_rng([seed, 7])
    count = int(rng.integers(2, 12))
    width = shape.ff if shape.family.name == "llama" else int(rng.integers(3 if block == 1 else 1, 9)) * block
    return replace(shape, n_experts=count, n_used=int(rng.integers(1, count + 1)), expert_ff=width)


def draw_tensors(shape: DenseShape, seed: int, tied: bool) -> Tensors:
    """Weights by GGUF name, float32 (outermost first), of a size that keeps logits near 2 or 3."""
    rng, found = np.random.default_rng([seed, 1]), {}
    for slot in slots(shape):
        if slot.name == "rope_freqs.weight" or (slot.attr == "output" and tied):
            continue
        values = rng.standard_normal(slot.dims[::-1])
        if len(slot.dims) == 1:
            values = 0.25 * values if slot.name.endswith("bias") else 1 + 0.2 * values
        else:
            gain = 2.5 if slot.attr in ("output", "attn_q", "attn_k", "ffn_gate", "ffn_gate_inp") else 1.0
            values *= 1.0 if slot.attr == "token_embd" and not tied else gain / np.sqrt(slot.dims[0])
        found[slot.name] = values.astype(np.float32)
    return found


def stored(values: np.ndarray, fmt: str) -> np.ndarray:
    """float32 rows as bytes of a format: rounded to nearest even, or blocks of 32 with a float16 scale."""
    if fmt == "BF16":
        bits = values.astype("<f4").view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)
    if fmt == "Q8_0":
        blocks = values.reshape(-1, 32)
        out = np.empty(len(blocks), FORMATS["Q8_0"].layout)
        out["d"] = np.abs(blocks).max(axis=1) / 127
        scale = np.maximum(out["d"].astype(np.float32), 1e-12)[:, None]
        out["q"] = np.clip(np.rint(blocks / scale), -127, 127)
        return out.view(np.uint8)
    return values.astype(FORMATS[fmt].layout).view(np.uint8)


def rounded(tensors: Tensors, fmt: str) -> Tensors:
    """The values that a file of this format holds."""

    def through(values: np.ndarray) -> np.ndarray:
        return FORMATS[fmt].dequantize(stored(values, fmt).reshape(-1)).reshape(values.shape)

    return {name: through(values) if values.ndim > 1 else values for name, values in tensors.items()}


def write(
    path: Path, shape: DenseShape, tensors: Tensors, fmt: str = "F32", more: list[tuple[str, str, Any]] | None = None
) -> Path:
    """A GGUF file; vectors are float32."""
    kinds = {name: fmt if values.ndim > 1 else "F32" for name, values in tensors.items()}
    specs = [TensorSpec(name, kinds[name], values.shape[::-1]) for name, values in tensors.items()]
    with write_gguf(path, [*shape.metadata(), *(more or [])], specs) as out:
        for name, values in tensors.items():
            out.write(name, stored(values, kinds[name]))
    return path


def published(folder: Path, shape: DenseShape, tensors: Tensors, shard_bytes: int = 1 << 30, **config: Any) -> Path:
    """A folder as Hugging Face has it, in F32: its names, of which gguf-py says what they are in GGUF. Rows of Llama's
    queries and keys stay in the order they are in."""
    of_gguf = gguf.get_tensor_name_map(gguf.MODEL_ARCH[shape.family.name.upper()], shape.n_layers)
    parts = (*LAYER_PARTS, *EXPERT_PARTS[shape.family.name]) if shape.n_experts else LAYER_PARTS
    layers = [f"model.layers.{layer}.{part}" for layer in range(shape.n_layers) for part in parts]
    names = {of_gguf.get_name(name.replace(".{}.", ".")): name for name in layers}
    names |= {of_gguf.get_name(name): name for name in MODEL_PARTS}
    if shape.family.gemma:
        names |= {
            f"blk.{i}.{ours}": f"model.layers.{i}.{name}" for i in range(shape.n_layers) for ours, name in GEMMA_PARTS
        }
        tensors = {n: v - np.float32(1) if n.endswith("norm.weight") else v for n, v in tensors.items()}
    plans = [
        PlannedTensor(f"{names[stem].format(expert)}.{kind}", "F32", part.shape, lambda part=part: part)
        for stem, kind, values in ((*name.rsplit(".", 1), values) for name, values in tensors.items())
        for expert, part in enumerate(values if values.ndim == 3 else [values])
    ]
    folder.mkdir()
    write_folder(folder, plans, shard_bytes)
    about = {
        "model_type": shape.family.name, "hidden_size": shape.dim, "intermediate_size": shape.ff,
        "num_hidden_layers": shape.n_layers, "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads, "head_dim": shape.head_dim, "vocab_size": shape.vocab,
        "rms_norm_eps": shape.rms_eps, "rope_theta": shape.rope_theta, "max_position_embeddings": shape.trained_ctx,
        "tie_word_embeddings": "output.weight" not in tensors, **config,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def _gated(gate: np.ndarray, up: np.ndarray, down: np.ndarray, h: np.ndarray, gelu: bool = False) -> np.ndarray:
    mid = gate @ h
    share = 1 / (1 + np.exp(-mid))
    if gelu:
        share = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (mid + 0.044715 * mid**3)))
    return down @ (mid * share * (up @ h))


def _experts(shape: DenseShape, at: Any, h: np.ndarray) -> np.ndarray:
    """As the papers have it: the softmax of all, the best of it, divided by their sum."""
    scores = at("ffn_gate_inp") @ h
    share = np.exp(scores - scores.max())
    share /= share.sum()
    best = np.argsort(-share, kind="stable")[: shape.n_used]
    outs = [_gated(at("ffn_gate_exps")[e], at("ffn_up_exps")[e], at("ffn_down_exps")[e], h) for e in best]
    return (share[best] / share[best].sum()) @ np.array(outs)


def logits_of(shape: DenseShape, tensors: Tensors, ids: list[int]) -> np.ndarray:
    """Logits (T, V) after each token, float64 throughout."""
    w = {name: values.astype(np.float64) for name, values in tensors.items()}
    heads, shared, size = shape.n_heads, shape.n_kv_heads, shape.head_dim
    gemma = shape.family.gemma

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + shape.rms_eps) * weight

    def turn(x: np.ndarray, pos: int, layer: int) -> np.ndarray:
        """As complex numbers."""
        theta = shape.window_theta if shape.window_theta and shape.window_of(layer) else shape.rope_theta
        freqs = theta ** (-2 * np.arange(size // 2) / size)
        first, second = (x[:, : size // 2], x[:, size // 2 :]) if shape.family.halves else (x[:, ::2], x[:, 1::2])
        turned = (first + 1j * second) * np.exp(1j * pos * freqs)
        if shape.family.halves:
            return np.concatenate((turned.real, turned.imag), axis=1)
        return np.stack((turned.real, turned.imag), axis=2).reshape(x.shape)

    keys: list[list[np.ndarray]] = [[] for _ in range(shape.n_layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(shape.n_layers)]
    out = []
    for pos, token in enumerate(ids):
        x = w["token_embd.weight"][token] * (np.sqrt(shape.dim) if gemma else 1)
        for layer in range(shape.n_layers):

            def at(name: str, layer: int = layer) -> np.ndarray:
                return w[f"blk.{layer}.{name}.weight"]

            h = norm(x, at("attn_norm"))
            q, k, v = (
                (at(f"attn_{name}") @ h + w.get(f"blk.{layer}.attn_{name}.bias", 0.0)).reshape(n, size)
                for name, n in (("q", heads), ("k", shared), ("v", shared))
            )
            if shape.family.qk_norm:
                q, k = norm(q, at("attn_q_norm")), norm(k, at("attn_k_norm"))
            keys[layer].append(turn(k, pos, layer))
            values[layer].append(v)
            mixed = []
            for head, query in enumerate(turn(q, pos, layer)):
                mine = head // (heads // shared)
                seen = slice(max(0, pos + 1 - (shape.window_of(layer) or pos + 1)), None)
                scores = np.array([query @ key[mine] for key in keys[layer][seen]]) / np.sqrt(size)
                weight = np.exp(scores - scores.max())
                mixed.append((weight / weight.sum()) @ np.array([value[mine] for value in values[layer][seen]]))
            o = at("attn_output") @ np.concatenate(mixed)
            x = x + (norm(o, at("post_attention_norm")) if gemma else o)
            h = norm(x, at("ffn_norm"))
            if shape.n_experts:
                o = _experts(shape, at, h)
            else:
                o = _gated(at("ffn_gate"), at("ffn_up"), at("ffn_down"), h, gemma)
            x = x + (norm(o, at("post_ffw_norm")) if gemma else o)
        out.append(w.get("output.weight", w["token_embd.weight"]) @ norm(x, w["output_norm.weight"]))
    return np.array(out)
