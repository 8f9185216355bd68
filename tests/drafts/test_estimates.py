"""Running estimates: what they converge to, and what does not move them."""

from __future__ import annotations

import random

import pytest

from ds4ref.drafts.estimates import MOST_ROWS, Acceptance, PassTimes

TRUE = (0.0, 1.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1)


def test_ratios_are_found_among_hiccups_and_while_all_passes_get_slower():
    times, chance, level = PassTimes(), random.Random(1), 0.02
    for count, rows in enumerate([1, 2, 1, 4, 1, 8, 4, 4] * 40):
        level *= 1.001
        times.add(rows, level * TRUE[rows] * chance.gauss(1, 0.05) * (4 if count % 37 == 36 else 1))
    assert [times.ratios[rows] for rows in (2, 4, 8)] == pytest.approx([1.5, 1.7, 2.1], rel=0.06)
    assert times.ratios[3] == pytest.approx(1.6, rel=0.06), "on a line between its neighbours"
    assert times.level == pytest.approx(level, rel=0.1)


def test_what_was_not_measured_is_expected_and_doubted():
    times = PassTimes()
    times.add(1, 1.0)
    assert times.level == 0, "one pass may have met a recording"
    times.add(1, 1.0)
    assert times.ratios[:4] == [0.0, 1.0, 1.15, 1.3] and times.most[1] == 1 and times.most[2] > 1.3
    for _ in range(2):
        times.add(4, 1.3)
    assert times.ratios[3:6] == pytest.approx([1.2, 1.3, 1.45]) and len(times.ratios) == MOST_ROWS + 1
    for _ in range(7):
        times.add(4, 1.3)
    assert 1.3 < times.most[4] < 1.4


@pytest.mark.parametrize(("rows", "seconds", "ratio"), [(2, 0.5, 1.0), (3, 6.0, 3.0), (8, 12.0, 8.0)])
def test_a_ratio_is_never_below_one_nor_above_the_rows(rows, seconds, ratio):
    times = PassTimes()
    for _ in range(200):
        times.add(1, 1.0)
        times.add(rows, seconds)
    assert times.ratios[rows] == ratio


def test_acceptance_by_position():
    acceptance = Acceptance()
    first = acceptance.tokens()
    assert first[0] == 1 and first[1] > 1.5 and len(first) == MOST_ROWS
    for _ in range(400):  # the second token never fits, the third would always
        acceptance.add(1, 3)
    tokens = acceptance.tokens()
    assert tokens[1] == pytest.approx(2, abs=0.03)
    assert tokens[2] == pytest.approx(2, abs=0.15) and tokens[7] == pytest.approx(2, abs=0.25)
    for _ in range(15):  # a change is noticed
        acceptance.add(0, 3)
    assert acceptance.tokens()[1] < 1.6
