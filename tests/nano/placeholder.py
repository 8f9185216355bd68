"""Random weights in the trained model's layout: every mechanism runs, and says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from ds4ref.archs.deepseek4.published import EXPERT_NAMES, LAYER_NAMES, MODEL_NAMES, MTP_NAMES
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.tensors import MTP, mtp_slots, slots
from ds4ref.nano.checkpoint import tokenizer, write_trained
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.vocab import build_vocabulary


def tensors(shape: ModelShape = SHAPE, seed: int = 1) -> dict[str, np.ndarray]:
    """Return float32 by published name, scaled so that no part of the network is dead."""
    rng = np.random.default_rng(seed)
    return {name: _values(rng, name, dims, shape) for name, dims in expected(shape)}


def expected(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the published name and NumPy shape of every tensor, in the order of the layers."""
    for slot in (*slots(shape), *mtp_slots(shape)):
        ours, dims = slot.name, slot.dims[::-1]
        if ours in MODEL_NAMES:
            yield MODEL_NAMES[ours], dims
            continue
        before = MTP if ours.startswith(MTP) else f"layers.{slot.layer}."
        name = ours.removeprefix(MTP if ours.startswith(MTP) else f"blk.{slot.layer}.")
        if name in EXPERT_NAMES:
            for expert in range(dims[0]):
                yield f"{before}ffn.experts.{expert}.{EXPERT_NAMES[name]}.weight", dims[1:]
        elif slot.attr != "exp_probs_b" or before == MTP or (slot.layer or 0) >= shape.n_hash_layers:
            yield before + {**LAYER_NAMES, **MTP_NAMES}[name], dims


def _values(rng: np.random.Generator, name: str, dims: tuple[int, ...], shape: ModelShape) -> np.ndarray:
    if name.endswith("tid2eid"):
        scores = rng.random((dims[0], shape.n_experts))
        return np.argsort(scores, axis=1)[:, : dims[1]].astype(np.float32)
    values = rng.standard_normal(dims, np.float32)
    if "norm" in name:
        return 1 + values / 10
    if name.endswith("_scale"):
        return 0.5 + values / 10
    if len(dims) == 1 or name.endswith("ape"):
        return values / 2
    gain = {"embed.weight": dims[1] ** 0.5 * 0.4, "head.weight": 2.5}.get(name, 1.0)
    return values * np.float32(gain / dims[1] ** 0.5)


def write_placeholder(folder: str | os.PathLike[str], shape: ModelShape = SHAPE, seed: int = 1) -> None:
    """Write a model folder of random weights."""
    words = build_vocabulary(shape.vocab)
    write_trained(folder, shape, tensors(shape, seed), tokenizer(words.tokens, words.merges))
