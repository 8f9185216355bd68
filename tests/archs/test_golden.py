"""The forward pass against Hugging Face and ds4 on the golden models (docs/evidence/validation.md)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.golden import AGAINST, BARS, Figure, case, decoded, engine, missed, needs_golden

pytestmark = needs_golden

BACKENDS = ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
"""``tests/kernels/cuda/lowering`` runs compiled CUDA kernels without a GPU."""
each_backend = pytest.mark.parametrize("backend", BACKENDS)


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


@each_backend
@pytest.mark.parametrize("name", BARS)
def test_exact_equals_hugging_face(name: str, backend: str) -> None:
    assert not _differs("exact", [name], backend)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("t5", "reference"), ("t40", "reference"), ("t40", "cpu"), ("t200", "cpu"), ("t700", "cpu")]
    + [pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in BARS],
)
def test_exact_token_by_token_equals_hugging_face(name: str, backend: str) -> None:
    assert not _differs("exact", [name], backend, recorded=True)


@each_backend
@pytest.mark.parametrize("names", [("t40",), ("t200",), ("t700",), tuple(BARS)])
def test_ds4_end_to_end_on_smooth(names: tuple[str, ...], backend: str) -> None:
    """Five tokens alone are too few for a mean, so t5 counts in the pool only."""
    assert not _differs("ds4", names, backend)


@each_backend
@pytest.mark.parametrize("name", ["t5", "t40", "t200", "t700"])
def test_qat_end_to_end_on_smooth(name: str, backend: str) -> None:
    assert not _differs("qat", [name], backend)


@pytest.mark.gpu
def test_ds4_on_cuda_agrees_with_the_reference_on_smooth() -> None:
    """Five tokens, as far as codes that fall on the other side of a rounding boundary let them agree."""
    ids = case("smooth", "t5")["ids"]
    wanted, got = (engine("smooth", "ds4", backend).logits(ids) for backend in ("reference", "cuda"))
    assert np.sqrt(np.square(got - wanted).mean()) <= 0.07
    assert (got.argmax(1) == wanted.argmax(1)).all()
