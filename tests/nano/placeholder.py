"""Random weights in the trained model's layout: every mechanism runs, and says nothing."""

from __future__ import annotations

import os

import numpy as np

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.nano.checkpoint import tokenizer
from ds4ref.nano.prose import prose
from ds4ref.nano.train.export import expected, write_folder
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.vocab import build_vocabulary


def tensors(shape: ModelShape = SHAPE, seed: int = 1) -> dict[str, np.ndarray]:
    """Return float32 by published name, scaled so that no part of the network is dead."""
    rng = np.random.default_rng(seed)
    return {name: _values(rng, name, dims, shape) for name, dims in expected(shape)}


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
    words = build_vocabulary(shape.vocab, prose(20_000, 1))
    write_folder(folder, shape, tensors(shape, seed), tokenizer(words.tokens, words.merges))
