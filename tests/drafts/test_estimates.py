"""Running estimates: what they converge to, and what does not move them."""

from __future__ import annotations

import random

import pytest

from ds4ref.drafts.estimates import MOST_ROWS, SLOPE, Acceptance, PassTimes, Rate

TRUE = (0.0, 1.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1)


def test_before_anything_was_measured():
    times = PassTimes()
    assert times.level == 0.0
    assert times.ratios == pytest.approx([0, *(1 + SLOPE * further for further in range(MOST_ROWS))])
    times.add(1, 0.1)  # makes a recording
    assert times.level == 0.0
    times.add(1, 0.05)
    assert times.level == pytest.approx(0.05)
    assert len(times.ratios) == len(times.most) == MOST_ROWS + 1
    assert all(a <= b for a, b in zip(times.ratios, times.most, strict=True))


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


def test_unmeasured_rows_are_like_their_neighbours():
    times = measured([1, 2] * 60)
    assert times.ratios[2] == pytest.approx(1.5, rel=0.05)
    assert 1.5 < times.ratios[3] < 1.75 and times.ratios[3] < times.ratios[8] < 2.8
    assert times.most[8] > times.ratios[8] * 1.05 and times.most[2] < times.ratios[2] * 1.05


def test_rows_without_plain_passes_between_keep_their_ratio():
    """Passes that all get slower say nothing about what a row costs."""
    times = PassTimes()
    for rows in [1, 4] * 20:
        times.add(rows, 0.02 * TRUE[rows])
    for count in range(300):
        times.add(4, 0.02 * TRUE[4] * (1 + count / 100))
        assert times.level > 0
    assert times.ratios[4] == pytest.approx(TRUE[4], rel=0.15)
    assert times.level == pytest.approx(0.02 * 4, rel=0.15)


@pytest.mark.parametrize(("rows", "seconds", "ratio"), [(2, 0.5, 1.0), (3, 6.0, 3.0), (8, 12.0, 8.0)])
def test_a_ratio_is_never_below_one_nor_above_the_rows(rows, seconds, ratio):
    times = PassTimes()
    for _ in range(200):
        times.add(1, 1.0)
        times.add(rows, seconds)
    assert times.ratios[rows] == times.most[rows] == ratio


def test_long_waits_are_not_filtered_one_by_one():
    times = PassTimes()
    for _ in range(5000):
        times.add(1, 0.5)
    assert len(times._pending) <= 16 and times.level == pytest.approx(0.5)
    times.add(1, 0.0)  # a clock that stood still
    assert times.level == pytest.approx(0.5)


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


def test_positions_behind_a_miss_are_no_trials():
    acceptance = Acceptance()
    acceptance.add(0, 7)
    assert [rate._trials for rate in acceptance._rates] == [1, 0, 0, 0, 0, 0, 0]
    acceptance.add(2, 2)
    assert [rate._trials > 0 for rate in acceptance._rates] == [True, True, False, False, False, False, False]
    acceptance.add(2, 7)
    assert [rate._trials > 0 for rate in acceptance._rates] == [True, True, True, False, False, False, False]


def test_deeper_positions_are_expected_to_be_like_the_ones_before():
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.add(1, 1)
    tokens = acceptance.tokens()
    assert tokens[7] > 7.5
    for _ in range(300):
        acceptance.add(0, 1)
    assert acceptance.tokens()[7] < 1.1
