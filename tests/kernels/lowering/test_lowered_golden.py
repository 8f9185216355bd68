"""Golden models end to end on compiled CUDA kernels: prefill, and token by token as recordings are replayed.

The bars are those of ``tests/model/test_golden.py`` for the CPU backend.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.golden import case, engine, kl, needs_golden
from tests.model.test_golden import BARS

from .hosted import LAUNCHED, available, hosted

pytestmark = [
    pytest.mark.cuda, needs_golden, pytest.mark.skipif(available() is not None, reason=str(available())),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _driver() -> Iterator[None]:
    with hosted():
        engine.cache_clear()
        yield
    engine.cache_clear()


def _logits(model: str, numerics: str, name: str, one_by_one: bool = False) -> np.ndarray:
    ids = case(model, name)["ids"]
    session = engine(model, numerics, "cuda").session(len(ids) + 1)
    return session.extend(ids, one_by_one=one_by_one)[case(model, name)["rows"]]


@pytest.mark.parametrize("one_by_one", [False, True], ids=["prefill", "recorded"])
@pytest.mark.parametrize("name", ["t5", "t40"])
def test_exact_equals_hugging_face(name: str, one_by_one: bool) -> None:
    wanted, got = case("tiny", name)["hf"], _logits("tiny", "exact", name, one_by_one)
    assert LAUNCHED, "no kernel ran"
    assert np.abs(got - wanted).max() <= BARS[name]
    assert (got.argmax(1) == wanted.argmax(1)).all()


@pytest.mark.parametrize("one_by_one", [False, True], ids=["prefill", "recorded"])
def test_ds4_on_smooth(one_by_one: bool) -> None:
    wanted, got = case("smooth", "t40")["ds4"], _logits("smooth", "ds4", "t40", one_by_one)
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.07
    assert kl(wanted, got) <= 3e-3


@pytest.mark.parametrize("name", ["t5", "t40"])
def test_qat_on_smooth(name: str) -> None:
    wanted, got = case("smooth", name)["ds4_f32act"], _logits("smooth", "qat", name)
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.015
    assert kl(wanted, got) <= 1.5e-4
    assert (got.argmax(1) == wanted.argmax(1)).mean() >= 0.985
