"""A DSpark drafter for the embedded model, made without training: it knows pairs of tokens, so that some drafts are
right. Its stages are random and act on the result only through the confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.dspark import drafter_slots
from ds4ref.engine import Engine
from ds4ref.nano.skills import GRADED, held_out
from ds4ref.weights.writer import TensorSpec, write_gguf

BLOCK, RANK = 5, 128


def pairs(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Two tables (V, RANK) whose product is about how often a token follows another one in the model's kind of text."""
    counts = np.zeros((engine.shape.vocab, engine.shape.vocab), np.float32)
    for item in (item for skill in GRADED for item in held_out(skill, 20, seed=3)):
        ids = [*item.prompt().encode(engine.tokenizer), *engine.tokenizer.encode(item.answer()), engine.tokenizer.eos]
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    counts /= counts.sum(1, keepdims=True) + 1
    basis = np.random.default_rng(1).standard_normal((len(counts), RANK))
    for _ in range(3):  # the leading singular vectors, by power iteration
        basis = np.linalg.qr(counts @ (counts.T @ basis))[0]
    return basis, counts.T @ basis


def write_drafter(path: Path, engine: Engine, seed: int = 0, **keys: Any) -> Path:
    """Write a drafter in ds4's layout; ``keys``: other values of its metadata."""
    shape, chance = engine.shape, np.random.default_rng(seed)
    targets = list(range(shape.n_layers))
    known = {"block_size": BLOCK, "noise_token_id": shape.vocab - 1, "target_layers": targets} | keys
    metadata = [("general.architecture", "string", "deepseek4-dspark")]
    metadata += [(f"deepseek4.dspark.{key}", "u32[]" if isinstance(v, list) else "u32", v) for key, v in known.items()]
    slots = drafter_slots(shape, len(targets), len(targets), RANK)
    tables = dict(zip(("markov_w1", "markov_w2"), pairs(engine), strict=True))
    with write_gguf(path, metadata, [TensorSpec(slot.name, "F32", slot.dims) for slot in slots]) as out:
        for slot in slots:
            value = chance.standard_normal(slot.dims[::-1]) / (slot.dims[0] ** 0.5 if len(slot.dims) > 1 else 10)
            if slot.attr == "norm":
                value = np.zeros_like(value)  # no logits but those of the pairs
            elif "norm" in slot.attr:
                value += 1
            out.write(slot.name, np.ascontiguousarray(tables.get(slot.attr, value), np.float32))
    return path
