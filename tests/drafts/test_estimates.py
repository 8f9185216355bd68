"""Running estimates: what they converge to, and what does not move them."""

from __future__ import annotations

import random

import pytest

from ds4ref.drafts.estimates import MOST_ROWS, Acceptance, PassTimes, Rate

TRUE = (0.0, 1.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1)


def measured(passes, drift=0.0, noise=0.05, seed=1) -> PassTimes:
    times, chance, level = PassTimes(), random.Random(seed), 0.02
    for count, rows in enumerate(passes):
        taken = level * TRUE[rows] * chance.gauss(1, noise)
        times.add(rows, taken * (4 if count % 37 == 36 else 1))
        if count % 8 == 0:
            assert times.level >= 0
        level *= 1 + drift
    return times


def test_ratios_are_found_among_hiccups_and_while_all_passes_get_slower():
    passes = [1, 2, 1, 4, 1, 8, 4, 4] * 40
    times = measured(passes, drift=0.005)
    assert [times.ratios[rows] for rows in (2, 4, 8)] == pytest.approx([1.5, 1.7, 2.1], rel=0.06)
    assert times.level == pytest.approx(0.02 * 1.005 ** len(passes), rel=0.1)


@pytest.mark.parametrize(("rows", "seconds", "ratio"), [(2, 0.5, 1.0), (3, 6.0, 3.0), (8, 12.0, 8.0)])
def test_a_ratio_is_never_below_one_nor_above_the_rows(rows, seconds, ratio):
    times = PassTimes()
    for _ in range(200):
        times.add(1, 1.0)
        times.add(rows, seconds)
    assert times.ratios[rows] == times.most[rows] == ratio


def test_a_rate_is_the_share_of_hits_and_forgets():
    rate, chance = Rate(), random.Random(2)
    assert rate.estimate(0.5) == 0.5 and rate.estimate(0.25, 4.0) == 0.25
    rate.add(True)
    assert rate.estimate(0.5) == 0.75 and rate.estimate(0.5, 3.0) == pytest.approx(2.5 / 4)
    for _ in range(2000):
        rate.fade()
        rate.add(chance.random() < 0.7)
    assert rate.estimate(0.5) == pytest.approx(0.7, abs=0.12)
    for _ in range(1000):
        rate.fade()
    assert rate.estimate(0.2) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_a_change_is_noticed_within_ten_trials(before, after):
    rate = Rate()
    for _ in range(300):
        rate.fade()
        rate.add(before)
    for _ in range(10):
        rate.fade()
        rate.add(after)
    assert (rate.estimate(0.5) > 0.5) == after


def test_acceptance_by_position():
    acceptance = Acceptance()
    first = acceptance.tokens()
    assert first[0] == 1 and first[1] > 1.5 and len(first) == MOST_ROWS
    for _ in range(400):  # the second token never fits, the third would always
        acceptance.add(1, 3)
    tokens = acceptance.tokens()
    assert tokens[1] == pytest.approx(2, abs=0.02)
    assert tokens[2] == pytest.approx(2, abs=0.1) and tokens[7] == pytest.approx(2, abs=0.12)
