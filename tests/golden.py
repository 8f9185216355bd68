"""Golden models and logits of two other engines, kept outside the repository because of their size.

They lie in ``../shared/golden`` of a full working place, or wherever DS4_GOLDEN points. Tests that need them are
skipped, with this reason, where they are absent; the same properties are then tested on the embedded model alone.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine

ROOT = Path(os.environ.get("DS4_GOLDEN", Path(__file__).parents[2] / "shared" / "golden"))

needs_golden = pytest.mark.skipif(
    not (ROOT / "tiny.gguf").exists(), reason="golden models not present (set DS4_GOLDEN to their folder)"
)


@functools.cache
def engine(model: str, numerics: str, backend: str = "reference") -> Engine:
    """A shared engine on a golden model ("tiny" or "smooth")."""
    return Engine.open(ROOT / f"{model}.gguf", backend=backend, numerics=numerics)


@functools.cache
def case(model: str, name: str) -> dict[str, np.ndarray]:
    """Logits and margins of one case ("t5", "t40", "t200", "t700", "t200.hidden")."""
    with np.load(ROOT / f"{model}.{name}.npz") as z:
        return {key: z[key] for key in z.files}


def kl(wanted: np.ndarray, got: np.ndarray) -> float:
    """Mean KL divergence of next-token distributions given logits (T, V)."""

    def logsoftmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = logsoftmax(wanted), logsoftmax(got)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())
