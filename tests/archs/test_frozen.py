"""The forward pass against logits of Hugging Face frozen in the repository, on the diagnostic model.

This is what keeps the engine honest where neither torch nor the golden models are at hand: the diagnostic model is
chaotic on purpose (clamps bite, top-k selects, both ratios close windows, two layers store experts as Q4_K), so every
known mistake moves its logits by far more than the bar.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.variants.faults import FAULTS

BAR = 2e-4
DATA = Path(__file__).parents[1] / "data" / "diagnostic.hf.npz"


@functools.cache
def frozen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, stored positions, Hugging Face's logits there."""
    with np.load(DATA) as z:
        return z["ids"], z["rows"], z["hf"]


@functools.cache
def engine(backend: str) -> Engine:
    return Engine.open(diagnostic_path(), backend=backend, numerics="exact")


def difference(backend: str, fault: str | None = None, **how: object) -> np.ndarray:
    """Logits minus Hugging Face's (rows, vocab)."""
    ids, rows, wanted = frozen()
    session = engine(backend).session(len(ids) + 1)
    if fault:
        session.hooks = FAULTS[fault].hooks()
    return session.extend(ids, **how)[rows] - wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    "how",
    [{}, {"chunk": 37}, pytest.param({"one_by_one": True}, marks=pytest.mark.thorough)],
    ids=["whole", "chunks", "one by one"],
)
def test_exact_equals_hugging_face(backend: str, how: dict[str, object]) -> None:
    d = difference(backend, **how)
    assert np.abs(d).max() <= BAR
    wanted = frozen()[2]
    assert ((wanted + d).argmax(1) == wanted.argmax(1)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if not f.quiet])
def test_every_known_mistake_is_noticed(name: str) -> None:
    assert np.abs(difference("reference", name)).max() > 100 * BAR
