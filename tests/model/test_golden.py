"""The forward pass against Hugging Face and ds4 on the golden models (docs/validation.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.golden import AGAINST, BARS, Figure, case, decoded, engine, missed, needs_golden

pytestmark = needs_golden

ON_CUDA = list(BARS) if os.environ.get("DS4_TEST_CUDA") == "device" else ["t5"]
"""Cases for the CUDA backend: a token takes the simulator half a minute."""

cuda = [] if os.environ.get("DS4_TEST_CUDA") == "device" else [pytest.mark.slow]


def with_cuda(names: Iterable[str]) -> list[Any]:
    """(case, backend) for the compiled backends, as far as CUDA's cases go."""
    pairs = [pytest.param(name, backend) for name in names for backend in ("reference", "cpu")]
    return [*pairs, *(pytest.param(name, "cuda", marks=cuda) for name in names if name in ON_CUDA)]


def _differs(numerics: str, names: Iterable[str], backend: str, recorded: bool = False) -> list[Figure]:
    """What is out of the bars of a mode on its golden model; ``recorded``: token by token, as a session decodes."""
    model, key = AGAINST[numerics]
    opened = engine(model, numerics, backend)
    wanted, got = [], []
    for name in names:
        ids, rows = case(model, name)["ids"], case(model, name)["rows"]
        logits = decoded(opened, ids) if recorded else opened.session(len(ids) + 1).extend(ids)
        wanted.append(case(model, name)[key])
        got.append(logits[rows])
    return missed(numerics, np.concatenate(wanted), np.concatenate(got), BARS[name])


@pytest.mark.parametrize(("name", "backend"), with_cuda(BARS))
def test_exact_equals_hugging_face(name: str, backend: str) -> None:
    assert not _differs("exact", [name], backend)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("t5", "reference"), ("t40", "reference"), ("t40", "cpu"), ("t200", "cpu"), ("t700", "cpu")]
    + [pytest.param(name, "cuda", marks=cuda) for name in ON_CUDA],
)
def test_exact_token_by_token_equals_hugging_face(name: str, backend: str) -> None:
    assert not _differs("exact", [name], backend, recorded=True)


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
    """Five tokens alone are too few for a mean, so t5 counts in the pool only."""
    assert not _differs("ds4", names, backend)


@pytest.mark.parametrize(("name", "backend"), with_cuda(["t5", "t40", "t200", "t700"]))
def test_qat_end_to_end_on_smooth(name: str, backend: str) -> None:
    assert not _differs("qat", [name], backend)


@pytest.mark.slow
def test_ds4_on_cuda_agrees_with_the_reference_on_smooth() -> None:
    """Five tokens, as far as codes that fall on the other side of a rounding boundary let them agree."""
    ids = case("smooth", "t5")["ids"]
    wanted, got = (engine("smooth", "ds4", backend).logits(ids) for backend in ("reference", "cuda"))
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.07
    assert (got.argmax(1) == wanted.argmax(1)).all()
