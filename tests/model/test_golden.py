"""The forward pass against Hugging Face and ds4 on the golden models (docs/validation.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.golden import case, engine, kl, needs_golden

pytestmark = needs_golden

BARS = {"t5": 1e-4, "t40": 2e-4, "t200": 2e-4, "t700": 1e-3}
"""Largest logit difference to Hugging Face in float32 that float noise explains."""


ON_CUDA = list(BARS) if os.environ.get("DS4_TEST_CUDA") == "device" else ["t5"]
"""Cases for the CUDA backend: a token takes the simulator half a minute."""

cuda = [] if os.environ.get("DS4_TEST_CUDA") == "device" else [pytest.mark.slow]


def with_cuda(names: Iterable[str]) -> list[Any]:
    """(case, backend) for the compiled backends, as far as CUDA's cases go."""
    pairs = [pytest.param(name, backend) for name in names for backend in ("reference", "cpu")]
    return [*pairs, *(pytest.param(name, "cuda", marks=cuda) for name in names if name in ON_CUDA)]


def _logits(model: str, numerics: str, name: str, backend: str, one_by_one: bool = False) -> np.ndarray:
    ids = case(model, name)["ids"]
    session = engine(model, numerics, backend).session(len(ids) + 1)
    return session.extend(ids, one_by_one=one_by_one)[case(model, name)["rows"]]


@pytest.mark.parametrize(("name", "backend"), with_cuda(BARS))
def test_exact_equals_hugging_face(name: str, backend: str) -> None:
    wanted, got = case("tiny", name)["hf"], _logits("tiny", "exact", name, backend)
    assert np.abs(got - wanted).max() <= BARS[name]
    assert (got.argmax(1) == wanted.argmax(1)).all()


@pytest.mark.parametrize(
    ("name", "backend"),
    [("t5", "reference"), ("t40", "reference"), ("t40", "cpu"), ("t200", "cpu"), ("t700", "cpu")]
    + [pytest.param(name, "cuda", marks=cuda) for name in ON_CUDA],
)
def test_exact_token_by_token_equals_hugging_face(name: str, backend: str) -> None:
    wanted, got = case("tiny", name)["hf"], _logits("tiny", "exact", name, backend, one_by_one=True)
    assert np.abs(got - wanted).max() <= BARS[name]
    assert (got.argmax(1) == wanted.argmax(1)).all()


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        pytest.param(names, backend, marks=cuda if backend == "cuda" else [])
        for names in [("t40",), ("t200",), ("t700",), tuple(BARS)]
        for backend in ("reference", "cpu", "cuda")
        if backend != "cuda" or set(names) <= set(ON_CUDA)
    ],
)
def test_ds4_end_to_end_on_smooth(names: tuple[str, ...], backend: str) -> None:
    """ds4 against its own decode path shows 0.058; no rounding at all shows 0.076.

    Five tokens alone are too few for a mean (ds4 against itself: 0.067, KL 2.7e-3), so t5 counts in the pool only.
    """
    wanted = np.concatenate([case("smooth", name)["ds4"] for name in names])
    got = np.concatenate([_logits("smooth", "ds4", name, backend) for name in names])
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.07
    assert kl(wanted, got) <= 3e-3


@pytest.mark.parametrize(("name", "backend"), with_cuda(["t5", "t40", "t200", "t700"]))
def test_qat_end_to_end_on_smooth(name: str, backend: str) -> None:
    wanted, got = case("smooth", name)["ds4_f32act"], _logits("smooth", "qat", name, backend)
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.015
    assert kl(wanted, got) <= 1.5e-4
    assert (got.argmax(1) == wanted.argmax(1)).mean() >= 0.985


@pytest.mark.slow
def test_ds4_on_cuda_agrees_with_the_reference_on_smooth() -> None:
    """Five tokens, as far as codes that fall on the other side of a rounding boundary let them agree."""
    wanted, got = (_logits("smooth", "ds4", "t5", backend) for backend in ("reference", "cuda"))
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.07
    assert (got.argmax(1) == wanted.argmax(1)).all()
