"""Random models of drawn configurations, and token lists on which their discrete choices are well posed.

A configuration is drawn by seed from ranges that differ from Flash and from the golden models in every dimension:
width, heads, head width, rotary width, ranks, groups, window, indexer heads and top-k, experts, vocabulary, layer
order, hash layers, streams, YaRN, epsilons, expert formats. Weights are random with the scales of the golden "tiny"
model: top-k really selects, clamps bite, logits have a standard deviation of about 2.5.

    shape = draw_shape(7)
    write_model(path, shape, seed=7)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf as gguf_py
import numpy as np

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.tensors import Recipe, expected_tensors
from ds4ref.weights.writer import TensorSpec, write_gguf

# formats of routed experts: gate and up, down; the last layers of some models are Q4_K as in the published mixed file
RECIPES = [
    Recipe("drawn", "IQ2_XXS", "Q2_K"),
    Recipe("drawn", "Q4_K", "Q4_K"),
    Recipe("drawn", "Q2_K", "IQ2_XXS"),
    Recipe("drawn", "IQ2_XXS", "Q2_K", upgraded=2),
]

# standard deviation of a matrix = gain / sqrt(columns), so that an input of rms 1 leaves with rms = gain
GAIN = {
    "output": 2.5,
    "output_hc_fn": 1.0,
    "hc_attn_fn": 1.0,
    "hc_ffn_fn": 1.0,
    "attn_q_a": 1.0,
    "attn_q_b": 1.0,
    "attn_kv": 1.0,
    "attn_output_a": 1.5,
    "attn_output_b": 1.5,
    "attn_compressor_kv": 1.0,
    "attn_compressor_gate": 1.5,
    "indexer.attn_q_b": 1.0,
    "indexer.proj": 1.0,
    "indexer_compressor_kv": 1.0,
    "indexer_compressor_gate": 1.5,
    "ffn_gate_inp": 1.5,
}
# experts of two kinds: the second runs into the clamp often. Odd layers have hot routed, even ones a hot shared expert.
COOL, HOT = {"gate": 2.0, "up": 2.0, "down": 0.8}, {"gate": 6.5, "up": 6.5, "down": 0.17}


def draw_shape(seed: int) -> ModelShape:
    """A configuration drawn with ``seed``: consistent, small enough for a test, unlike the golden ones."""
    rng = np.random.default_rng([seed, 1])

    def one(*choices: int) -> int:
        return choices[int(rng.integers(len(choices)))]

    rotary = one(32, 64, 64)
    head_dim = rotary + 64 * one(1, 2, 3, 5, 6)
    if head_dim == 128:  # index rows and attention rows are told apart by their width
        head_dim += 64
    heads = one(4, 6, 8, 10, 12)
    groups = one(*(g for g in (1, 2, 3, 4, 5, 6, 8) if heads * head_dim % (32 * g) == 0 and heads % g == 0))
    layers = one(5, 6, 7)
    ratios = [0, 4, 128, *(one(0, 4, 4, 128) for _ in range(layers - 3))]
    experts = one(6, 10, 12, 16, 20)
    return ModelShape(
        n_layers=layers,
        dim=one(256, 512, 768),
        vocab=int(rng.integers(300, 900)),
        n_heads=heads,
        head_dim=head_dim,
        rope_dim=rotary,
        q_rank=32 * one(2, 3, 5, 6, 8),
        o_rank=32 * one(1, 2, 3),
        o_groups=groups,
        n_experts=experts,
        n_used=one(2, 4, 5, 6),
        expert_ff=one(256, 512),
        n_shared=1,
        n_hash_layers=one(0, 1, 2, 3),
        window=one(7, 24, 33, 64, 100, 128),
        index_heads=one(16, 20, 24, 32),
        index_dim=128,
        index_topk=one(5, 12, 20, 28),
        hc=one(2, 3, 4, 4, 4, 4),
        sinkhorn_iters=one(8, 20, 20),
        ratios=tuple(int(r) for r in rng.permutation(ratios)),
        swiglu_limit=(float(one(7, 10)),) * layers,
        rope_theta=float(one(10000, 50000)),
        compress_theta=float(one(160000, 40000)),
        yarn_factor=float(one(4, 16, 40)),
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
        # a small original context puts YaRN's ramp on frequencies that a few hundred tokens can tell apart
        yarn_orig_ctx=one(256, 2048, 65536),
        route_scale=(1.0, 1.5, 2.5)[one(0, 1, 2)],
        rms_eps=(1e-6, 1e-5)[one(0, 1)],
        hc_eps=(1e-6, 1e-5)[one(0, 1)],
        norm_weights=True,
        name=f"oracle-{seed}",
    )


def write_model(path: str | os.PathLike[str], shape: ModelShape, seed: int) -> None:
    """A GGUF of ``shape`` with weights drawn by ``seed``. It has no vocabulary: oracles speak token ids."""
    rng = np.random.default_rng([seed, 2])
    tensors = expected_tensors(shape, RECIPES[seed % len(RECIPES)])
    with write_gguf(path, shape.metadata(), tensors) as out:
        for spec in tensors:
            out.write(spec.name, random_tensor(rng, spec, shape))


def random_tensor(rng: np.random.Generator, spec: TensorSpec, shape: ModelShape) -> np.ndarray:
    """Stored bytes of one tensor."""
    layer, name = _split(spec.name)
    columns, size = spec.dims[0], spec.shape
    if name == "ffn_gate_tid2eid":
        return np.argsort(rng.random((size[0], shape.n_experts)), axis=1)[:, : size[1]].astype(np.int32)
    if name == "token_embd":
        return _stored(rng, spec, 1.0)
    if name.endswith(("_exps", "_shexp")):
        hot = layer % 2 == (1 if name.endswith("_exps") else 0)
        gain = (HOT if hot else COOL)[name.split("_")[1]]
        return _stored(rng, spec, gain / np.sqrt(columns))
    if name.endswith("_ape"):
        return _stored(rng, spec, 0.7)
    if name in GAIN:
        return _stored(rng, spec, GAIN[name] / np.sqrt(columns))
    return _vector(rng, name, size).astype(np.float32)


def _split(name: str) -> tuple[int, str]:
    """blk.3.attn_q_a.weight -> (3, attn_q_a); layer -1 for tensors of the whole model."""
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if not stem.startswith("blk."):
        return -1, stem
    _, layer, rest = stem.split(".", 2)
    return int(layer), rest


def _vector(rng: np.random.Generator, name: str, size: tuple[int, ...]) -> np.ndarray:
    if name in ("attn_kv_a_norm", "attn_compressor_norm"):
        return rng.uniform(0.7, 2.3, size)
    if name.endswith("_norm"):
        return rng.uniform(0.5, 1.5, size)
    if name.endswith("_scale"):
        return rng.uniform(0.5, 1.5, size)
    if name.endswith("_base"):
        return rng.normal(0, 1, size)
    if name == "attn_sinks":
        return rng.normal(0, 0.8, size)
    if name == "exp_probs_b":
        return rng.normal(0, 0.3, size)
    raise ValueError(f"no rule for tensor {name}")


def _stored(rng: np.random.Generator, spec: TensorSpec, std: float) -> np.ndarray:
    """A matrix of standard deviation ``std`` in its storage format."""
    if spec.fmt in ("F32", "F16"):
        return rng.normal(0, std, spec.shape).astype(np.float32 if spec.fmt == "F32" else np.float16)
    if spec.fmt == "Q8_0":
        values = rng.normal(0, std, spec.shape).astype(np.float32)
        return gguf_py.quants.quantize(values, gguf_py.GGMLQuantizationType.Q8_0)
    return _random_blocks(rng, spec, std)


def _random_blocks(rng: np.random.Generator, spec: TensorSpec, std: float) -> np.ndarray:
    """K and IQ formats: any bits decode, so draw them, then set the f16 scales for the wanted standard deviation.

    Scales vary by block (a kernel that reads a neighbour's scale must not go unnoticed).
    """
    kind = gguf_py.GGMLQuantizationType[spec.fmt]
    block, size = gguf_py.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (*spec.shape[:-1], spec.shape[-1] // block, size), dtype=np.uint8)
    # byte offsets of d and dmin, and dmin / d for zero mean
    at, at_min, ratio = {"IQ2_XXS": (0, None, 0.0), "Q2_K": (80, 82, 1.5), "Q4_K": (0, 2, 7.5)}[spec.fmt]

    def put(offset: int, values: np.ndarray) -> None:
        raw[..., offset : offset + 2] = values.astype("<f2")[..., None].view(np.uint8)

    spread = rng.uniform(0.6, 1.4, raw.shape[:-1])
    unit = 2.0**-8  # large enough to be exact enough in f16, small enough not to overflow
    put(at, spread * unit)
    if at_min is not None:
        put(at_min, spread * unit * ratio)
    rms = float(np.sqrt(np.square(gguf_py.quants.dequantize(raw.reshape(-1, size), kind), dtype=np.float64).mean()))
    put(at, spread * unit * std / rms)
    if at_min is not None:
        put(at_min, spread * unit * ratio * std / rms)
    return raw


@dataclass(frozen=True)
class Draw:
    """Token ids whose discrete choices are well posed, and how many lists were turned down before."""

    ids: list[int]
    rejected: int
    margin: float


def draw_ids(
    margin_of: Callable[[Sequence[int]], float], vocab: int, length: int, seed: int, least: float, tries: int = 40
) -> Draw:
    """The first random list whose smallest margin is at least ``least``.

    ``margin_of`` asks the oracle alone how far the closest top-k decision of a list is from its alternative. Below
    float noise a decision says nothing about an engine: both answers are right, and everything after them differs.
    """
    rng = np.random.default_rng([seed, length, 3])
    for rejected in range(tries):
        ids = rng.integers(0, vocab, length).tolist()
        margin = margin_of(ids)
        if margin >= least:
            return Draw(ids, rejected, margin)
    raise ValueError(f"{tries} token lists of {length}, every one with a decision closer than {least}")
