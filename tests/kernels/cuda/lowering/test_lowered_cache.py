"""A whole model whose experts do not all fit, on compiled kernels: the bits of one that fits, while experts move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.kernels.cuda import backend
from ds4ref.kernels.cuda.driver import residency

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _driver(cuda_driver: Any) -> Iterator[None]:
    yield


def logits(path: str, tokens: int) -> tuple[np.ndarray, Any]:
    """Logits after each of some tokens of a text: three at once, the others by replays."""
    with Engine.open(path, backend="cuda", numerics="ds4") as engine:
        session, rng = engine.session(64), np.random.default_rng(4)
        ids = rng.integers(1, engine.shape.vocab, tokens + 3).tolist()
        session.sync(ids[:3])
        found = np.stack([session.eval(token) for token in ids[3:]])
        return found, engine.model.ops.experts


def test_a_model_that_does_not_fit_has_the_bits_of_one_that_does(
    nano_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, cache = logits(nano_path, 6)
    assert cache is None

    def prepare(self: Any, nbytes: int, of_experts: int) -> None:
        self.share = 0.4

    monkeypatch.setattr(backend.CUDA, "prepare", prepare)
    monkeypatch.setattr(residency, "MARGIN", 1)  # so that much moves in few tokens
    got, cache = logits(nano_path, 6)
    assert np.array_equal(got, expected)
    moved = np.count_nonzero(cache.residency.expert_in != np.arange(cache.residency.slots))
    assert cache.reachable and moved and cache.residency.misses > 20


@pytest.mark.slow
def test_a_long_prompt_is_as_near_as_orders_of_adding_allow(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of a chunk pass portion by portion."""

    def prompted() -> tuple[np.ndarray, Any]:
        with Engine.open(nano_path, backend="cuda", numerics="exact") as engine:
            ids = np.random.default_rng(4).integers(1, engine.shape.vocab, 20)
            return engine.session(64).extend(ids), engine.model.ops.experts

    def prepare(self: Any, nbytes: int, of_experts: int) -> None:
        self.share = 0.4

    expected, _ = prompted()
    monkeypatch.setattr(backend.CUDA, "prepare", prepare)
    got, cache = prompted()
    assert cache.residency.hot.any(), "the prompt was counted"
    assert np.abs(got - expected).max() < 2e-4 * expected.std()
