"""The statistics of a diagnosis, on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.test_vectors.diagnosis.evidence import FOREIGN, Reference

RNG = np.random.default_rng(5)


def made(coarse: bool, noise: float = 0.1, runs: int = 8, rows: int = 120, storage: float = 0.0):
    truth = np.random.default_rng(1).normal(0, 1, (rows, 64))
    replicas = [truth + noise * np.random.default_rng([2, i]).normal(0, 1, truth.shape) for i in range(runs)]
    return truth, Reference(truth, replicas, np.full(rows, storage**2), coarse)


def engine(truth, noise, seed=9):
    return truth + noise * np.random.default_rng(seed).normal(0, 1, truth.shape)


@pytest.mark.parametrize("coarse", [False, True])
def test_a_right_engine_fits(coarse) -> None:
    truth, ref = made(coarse)
    for seed in range(10):
        assert ref.fit(engine(truth, 0.1, seed)).misfit < 3


@pytest.mark.parametrize(("factor", "refused"), [(1.0, False), (1.15, True), (1.5, True)])
def test_a_little_more_noise_everywhere_is_refused_in_a_coarse_set(factor, refused) -> None:
    truth, ref = made(True)
    assert (ref.fit(engine(truth, 0.1 * factor)).misfit >= 3) is refused


def test_float_noise_may_be_larger_and_is_told() -> None:
    truth, ref = made(False, noise=1e-5)
    result = ref.fit(engine(truth, 1e-4))
    assert result.misfit < 3 and result.shift == pytest.approx(np.log(10), abs=0.1)
    assert ref.fit(engine(truth, 1e-3)).misfit > 4 and np.exp(FOREIGN) < 100


@pytest.mark.parametrize(
    ("course", "fits"),
    [
        (np.geomspace(0.6, 1.45, 120), True),  # ds4's C code with its roundings off: iterated rope angles
        (np.where(np.arange(120) < 60, 1.0, 1.5), True),  # decode after prefill
        (np.where(np.arange(120) < 60, 1.0, 5.0), False),
        (np.where(np.arange(120) == 70, 5.0, 1.0), False),
    ],
)
def test_float_noise_of_another_engine_has_a_course_of_its_own(course, fits) -> None:
    """Differences that double along the prompt are allowed in a float engine, but not in a set that quantizes."""
    truth, ref = made(False, noise=1e-5)
    values = truth + (engine(truth, 1e-5) - truth) * course[:, None]
    assert (ref.fit(values).misfit < 3) is fits
    if fits:
        coarse = made(True, noise=1e-5)[1]
        assert coarse.fit(values).misfit > 3


def test_storage_is_no_float_noise() -> None:
    """The size of storage rounding is known, so it counts neither as misfit nor as the engine's own float noise."""
    truth, ref = made(False, noise=1e-5, storage=1e-3)
    result = ref.fit(engine(truth, 1e-3))
    assert result.misfit < 3 and result.shift < 0.5
    assert ref.fit(engine(truth, 2e-3)).misfit > 3


@pytest.mark.parametrize("where", [slice(0, 12), slice(50, 62), slice(108, 120)])
def test_a_stretch_that_is_off_is_seen(where) -> None:
    truth, ref = made(True)
    values = engine(truth, 0.1)
    values[where] += 0.1 * np.random.default_rng(3).normal(0, 1, values[where].shape)
    result = ref.fit(values)
    assert result.local > 3 and result.local > result.z
