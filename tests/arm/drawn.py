"""Logits of drawn models, written by one machine and compared on another.

    python -m tests.arm.drawn FOLDER       models, token ids and logits in every mode, by this machine

A session reads half of the tokens at once and the others one by one, so that both matrix products and the recorded
pass of a token count.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ds4ref.engine import Engine
from tests.archs import families
from tests.oracle.modelgen import draw_shape, write_model

MODES = ("exact", "qat", "ds4")
TOKENS = 40
"""Of a text for a drawn DeepSeek V4; half of them are read at once."""
LAYERS = 4


class Case(NamedTuple):
    """A model's name and what writes it: ``make(path)`` returns the token ids to read."""

    name: str
    make: Callable[[Path], list[int]]


def _deepseek4(seed: int) -> Case:
    """Draw a model narrow enough for an emulator, which takes 7 to 90 ns for a multiplication and an addition."""

    def make(path: Path) -> list[int]:
        drawn = draw_shape(seed)
        shape = replace(
            drawn, dim=256, expert_ff=256, n_layers=LAYERS, ratios=drawn.ratios[:LAYERS],
            swiglu_limit=drawn.swiglu_limit[:LAYERS], index_topk=5,
        )  # fmt: skip
        write_model(path, shape, seed)
        return np.random.default_rng([seed, 4]).integers(0, shape.vocab, TOKENS).tolist()

    return Case(f"deepseek4-{seed}.gguf", make)


def _dense(family: str, seed: int) -> Case:
    def make(path: Path) -> list[int]:
        model = families.draw(family, seed)
        model.folder(path)
        return model.ids

    return Case(f"{family}-{seed}", make)


CASES = (*(_deepseek4(seed) for seed in range(6)), *(_dense(name, 1) for name in families.KINDS))
"""Models in which no choice (experts, rows of the indexer) is closer than float noise: x86's tiers agree on them."""


def logits(path: Path, ids: list[int], mode: str) -> np.ndarray:
    """Return the logits (tokens, vocabulary) float32 after each of ``ids`` in a numerics mode."""
    half = len(ids) // 2
    with Engine.open(path, numerics=mode, threads=1) as engine:
        session = engine.session(len(ids) + 1)
        read = session.extend(ids[:half])
        return np.concatenate([read, *(session.eval(token)[None] for token in ids[half:])])


def difference(wanted: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    """Return the largest difference in standard deviations of ``wanted``, and the share of rows whose best token is
    the same."""
    assert wanted.shape == got.shape
    largest = float(np.abs(got - wanted).max() / wanted.std())
    return largest, float((got.argmax(1) == wanted.argmax(1)).mean())


def write(folder: Path) -> None:
    """Write every model and its logits into ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for case in CASES:
        ids = case.make(folder / case.name)
        made = {mode: logits(folder / case.name, ids, mode) for mode in MODES}
        np.savez(folder / f"{case.name}.npz", ids=np.array(ids), **made)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
