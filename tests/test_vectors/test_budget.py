"""How far an op may be off before it counts as wrong: by noise, storage and flipped roundings, for each row."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.test_vectors.trace.blame import Blaming
from ds4ref.test_vectors.trace.budget import judge, limits
from ds4ref.test_vectors.trace.causes import _is_spoiled

ULP = 2.0**-22


def rows(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_limits_are_four_times_the_noise_twice_the_storage_and_one_ulp() -> None:
    """The larger of the two noises counts, but at least half of the noise that is typical of rows of that size."""
    noise = [rows(0.2, 0.0, 0.1, np.nan), rows(0.1, 0.4, 0.0, np.inf)]
    size, lost = rows(1, 2, 10, 0), rows(0, 0.5, np.nan, 3)
    # joint noise 0.2, 0.4, 0.1, 0; by size 0.2, 0.2, 0.01, none: typically 0.2
    wanted = [4 * 0.2 + ULP, 4 * 0.4 + 1 + 2 * ULP, 4 * 0.5 * 0.2 * 10 + 10 * ULP, 6]
    np.testing.assert_allclose(limits(noise, size, lost), wanted, rtol=1e-12)


def test_one_row_beyond_noise_is_soft_where_flips_explain_it_and_hard_where_they_do_not() -> None:
    """Limits of 0.4 and flips of 1.5 x 0.2: a row at 0.7 could be a flip, one just beyond cannot."""
    n = 40
    noise, size, lost = [np.full(n, 0.1)] * 2, np.zeros(n), np.zeros(n)
    for distance, beyond, hard in ((0.4, 0, 0), (0.41, 1, 0), (0.69, 1, 0), (0.71, 1, 1)):
        apart = np.zeros(n)
        apart[7], apart[8] = distance, np.nan
        result = judge(apart, noise, size, lost, np.full(n, 0.2))
        assert (result.beyond.sum(), result.hard.sum(), result.wrong) == (beyond, hard, bool(hard))
        assert result.limit == pytest.approx(0.4)
        assert judge(apart, noise, size, lost, None).wrong == (distance > 0.4)
    apart = np.full(n, 0.5)
    result = judge(apart, noise, np.full(n, 2.0), lost, np.full(n, 0.2))
    assert (
        result.wrong and result.ratio == pytest.approx(0.5 / 0.4, rel=1e-5) and result.relative == pytest.approx(0.25)
    )
    assert not judge(np.full(n, np.nan), noise, size, lost, None).wrong


@pytest.mark.parametrize(("distance", "wrong"), [(0.5, False), (1.5, False), (1.7, True), (math.inf, True)])
def test_no_number_of_noisy_rows_excuses_one_far_beyond_them(distance: float, wrong: bool) -> None:
    """One row in fifty of a noisy run exceeds its limit, 0.4, by a factor of 2, so one row of theirs may, too; but
    none may exceed it by more than twice that factor."""
    first, second, apart = np.full(50, 0.1), np.full(50, 0.1), np.zeros(50)
    first[3], apart[7] = 0.8, distance
    assert judge(apart, [first, second], np.zeros(50), np.zeros(50), None).wrong is wrong


def test_a_rounding_that_moves_a_choice_is_measured_by_row() -> None:
    """The effect of rounding is the largest change of each of three rows of scores; scores that are masked in both, or
    not numbers, count as unchanged. By column, its length would not fit, and a flip would be blamed on the router."""
    plain = np.array([[1, 2, -np.inf, 4], [0, 0, 0, 0], [1, 1, np.nan, 1]], np.float32)
    rounded = plain + np.array([[0, 0.5, 0, -0.25], [0, 0, 0, 0], [0.125, 0, 0, 2]], np.float32)
    key = ("ffn_moe_topk", 3)
    passes = {"exact": SimpleNamespace(ours={key: plain}), "ds4": SimpleNamespace(ours={key: rounded})}
    case = SimpleNamespace(clean_pass=passes.get)
    assert Blaming.flip(case, "ds4", key).tolist() == [0.5, 0, 2]  # type: ignore[arg-type]
    assert Blaming.flip(case, "exact", key) is None  # type: ignore[arg-type]
    assert Blaming.flip(case, "ds4", ("ffn_moe_topk", 4)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("after", "exceptions", "spoiled"), [
    ([0, 9], {}, True), ([0, 0], {}, False), ([0, 1], {}, False), ([0, 9], {"Qraw": "qat"}, False),
])  # fmt: skip
def test_a_cause_spoils_ops_that_were_right(after, exceptions, spoiled) -> None:
    """A fault spoils an op if the op is beyond its budget with it; ops that round as another set does are ignored."""
    key = ("Qraw", 0)
    case = SimpleNamespace(clean_pass=lambda name: SimpleNamespace(apart={key: rows(0, 0)}),
                           judge=lambda name, key, apart: SimpleNamespace(wrong=apart.max() > 5))  # fmt: skip
    result = SimpleNamespace(exceptions=exceptions, rounding="exact")
    assert _is_spoiled(case, key, result, SimpleNamespace(apart={key: rows(*after)})) == spoiled  # type: ignore[arg-type]
