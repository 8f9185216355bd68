"""Golden models and logits of two other engines, kept outside the repository because of their size.

They lie in ``../shared/golden`` of a full working place, or wherever DS4_GOLDEN points. Tests that need them are
skipped, with this reason, where they are absent; the same properties are then tested on the embedded model alone.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ds4ref.engine import Engine

try:
    import pytest
except ImportError:  # benchmarks.gpu_models wants the logits alone, on machines where nothing can be installed
    pytest = None  # type: ignore[assignment]

ROOT = Path(os.environ.get("DS4_GOLDEN", Path(__file__).parents[2] / "shared" / "golden"))

needs_golden = pytest and pytest.mark.skipif(
    not (ROOT / "tiny.gguf").exists(), reason="golden models not present (set DS4_GOLDEN to their folder)"
)

AGAINST = {"exact": ("tiny", "hf"), "qat": ("smooth", "ds4_f32act"), "ds4": ("smooth", "ds4")}
"""The golden model that a numerics mode is judged on, and whose logits."""

BARS = {"t5": 1e-4, "t40": 2e-4, "t200": 2e-4, "t700": 1e-3}
"""Largest logit difference to Hugging Face in float32 that float noise explains, by case."""


class Figure(NamedTuple):
    """One comparison: ``value`` has to be at most ``bar``, or at least if ``better`` is "higher"."""

    what: str
    value: float
    bar: float
    better: str = "lower"

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def judged(numerics: str, wanted: np.ndarray, got: np.ndarray, bar: float = BARS["t200"]) -> list[Figure]:
    """Logits (T, V) of a mode beside those it is judged by, each with the bar of every backend; ``bar`` is that of mode
    exact. Mode ds4 wants many tokens: ds4 against its own decode path shows rms 0.058, no rounding at all 0.076, and
    five tokens alone are too few for a mean (ds4 against itself: 0.067, KL 2.7e-3)."""
    same = float((got.argmax(1) == wanted.argmax(1)).mean())
    rms = float(np.sqrt(np.square(got - wanted).mean()))
    if numerics == "exact":
        largest = float(np.abs(got - wanted).max())
        return [Figure("largest difference", largest, bar), Figure("same first choice", same, 1.0, "higher")]
    if numerics == "qat":
        found = [Figure("rms", rms, 0.015), Figure("mean KL", kl(wanted, got), 1.5e-4)]
        return [*found, Figure("same first choice", same, 0.985, "higher")]
    return [Figure("rms", rms, 0.07), Figure("mean KL", kl(wanted, got), 3e-3)]


def missed(numerics: str, wanted: np.ndarray, got: np.ndarray, bar: float = BARS["t200"]) -> list[Figure]:
    """Those of ``judged`` that are out of bounds."""
    return [figure for figure in judged(numerics, wanted, got, bar) if not figure.met]


@functools.cache
def engine(model: str, numerics: str, backend: str = "reference") -> Engine:
    """A shared engine on a golden model ("tiny" or "smooth")."""
    return Engine.open(ROOT / f"{model}.gguf", backend=backend, numerics=numerics)


@functools.cache
def case(model: str, name: str) -> dict[str, np.ndarray]:
    """Logits and margins of one case ("t5", "t40", "t200", "t700", "t200.hidden")."""
    with np.load(ROOT / f"{model}.{name}.npz") as z:
        return {key: z[key] for key in z.files}


def decoded(made: Engine, ids: np.ndarray) -> np.ndarray:
    """Logits (T, V) after each token, one at a time as a session decodes: recorded once, replayed for every further one
    where the backend records."""
    session = made.session(len(ids) + 1)
    return np.stack([session.eval(int(token)) for token in ids])


def divergences(wanted: np.ndarray, got: np.ndarray) -> np.ndarray:
    """KL divergence of next-token distributions given logits (T, V): float64 (T,)."""

    def logsoftmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = logsoftmax(wanted), logsoftmax(got)
    each: np.ndarray = (np.exp(p) * (p - q)).sum(axis=1)
    return each


def kl(wanted: np.ndarray, got: np.ndarray) -> float:
    """Their mean."""
    return float(divergences(wanted, got).mean())
