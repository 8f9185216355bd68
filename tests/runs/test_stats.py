"""Intervals cover what they claim to, and agree with scipy and with published examples."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ds4ref.runs import stats
from ds4ref.runs.spread import median_band


def test_small_samples_get_students_t():
    d = np.array([0.1, -0.2, 0.4, 0.3, 0.15])
    i = stats.centre_interval(d)
    low, high = scipy_stats.t.interval(0.95, 4, d.mean(), scipy_stats.sem(d))
    assert (i.estimate, i.low, i.high) == pytest.approx((d.mean(), low, high))
    assert i.p == pytest.approx(scipy_stats.ttest_1samp(d, 0).pvalue)


def test_a_disturbed_cell_costs_little():
    ratios = np.random.default_rng(3).normal(0, 0.005, (5, 8))
    ratios[2, 3] = -0.7
    assert abs(stats.rounds_interval(ratios).estimate) < 0.01
    ratios[4, :4] = math.nan
    assert abs(stats.rounds_interval(ratios).estimate) < 0.01


def test_welch_is_scipys():
    a, b = [1.0, 1.2, 0.9, 1.4], [1.6, 1.5, 2.1, 1.9, 1.7]
    i = stats.welch_interval(a, b)
    done = scipy_stats.ttest_ind(b, a, equal_var=False)
    low, high = done.confidence_interval(0.95)
    assert (i.low, i.high, i.p) == pytest.approx((low, high, done.pvalue))


def test_many_values_get_hodges_and_lehmann():
    """The centre is where scipy's exact test sees as much on either side, the ends where it begins to object."""
    d = np.random.default_rng(0).exponential(size=25)
    i = stats.centre_interval(d)
    assert i.method == "Hodges-Lehmann" and i.low < i.estimate < i.high
    assert scipy_stats.wilcoxon(d - i.estimate).pvalue > 0.98
    for end, inwards in ((i.low, 1), (i.high, -1)):
        assert scipy_stats.wilcoxon(d - end + 0.01 * inwards).pvalue < 0.05
        assert scipy_stats.wilcoxon(d - end - 0.01 * inwards).pvalue > 0.05
    for size in (8, 25, 140):
        shifted = np.random.default_rng(size).normal(0.3, 1, size)
        wanted = scipy_stats.wilcoxon(shifted, correction=size > 50).pvalue
        assert stats.centre_interval(shifted).p == pytest.approx(wanted)


def test_values_far_out_neither_move_nor_widen_it():
    d = np.random.default_rng(2).normal(0, 1, 20)
    far = np.r_[d[:18], 1e6, 1e7]
    assert stats.centre_interval(far).high < 2 and abs(stats.centre_interval(far).estimate) < 0.5


def test_at_which_number_ranks_take_over():
    """Six values of one sign are the least that prove anything at 95 %, eight at 99 %."""
    d = np.random.default_rng(4).normal(size=8)
    found = {(n, c): stats.centre_interval(d[:n], c).method for n, c in ((5, 0.95), (6, 0.95), (7, 0.99), (8, 0.99))}
    assert [m.split()[0] for m in found.values()] == ["Student", "Hodges-Lehmann", "Student", "Hodges-Lehmann"]
    assert stats.centre_interval(np.arange(20) // 5).method == "Student t", "rounded"


def test_what_cannot_be_known_is_not_claimed():
    none = (
        stats.centre_interval([1.0, 2.0]), stats.welch_interval([1, 3], [2, 3, 4]),
        stats.weighted_interval([1.0, 2.0], [1, 1]), stats.graded_interval([1, 0] * 9, [1, 1] * 9),
        stats.centre_interval([2.0] * 30), stats.welch_interval([0, 0, 0], [2, 2.1, 2]),
        stats.weighted_interval([2.0, 4.0, 6.0], [1, 2, 3]),
    )  # fmt: skip
    for i in none:
        assert not i.known and (i.low, i.high) == (-math.inf, math.inf) and i.p is None
    assert (none[0].estimate, none[0].n) == (1.5, 2) and (none[4].estimate, none[4].n) == (2.0, 30)
    assert [i.method for i in none[4:]] == ["no spread"] * 3


def test_engines_that_agree_to_the_last_bit_are_the_same():
    i = stats.weighted_interval([0.0, 0.0], [3, 5])
    assert (i.low, i.high, i.method) == (0.0, 0.0, "identical")


def test_mcnemar_is_the_exact_binomial():
    a, b = np.array([1] * 59 + [1] * 6 + [0] * 16 + [0] * 80), np.array([1] * 59 + [0] * 6 + [1] * 16 + [0] * 80)
    assert stats.mcnemar(a, b) == pytest.approx(scipy_stats.binomtest(6, 22).pvalue)
    assert stats.mcnemar(a, a) == 1.0
    i = stats.graded_interval(a, b)
    assert i.estimate == pytest.approx(10 / 161) and i.low > 0 and i.method == "Agresti-Min"
    assert stats.graded_interval(b, a).high == pytest.approx(-i.low, abs=0.004)


def test_few_changes_give_agresti_and_mins_interval():
    """Agresti and Min (2005), section 2: Wald on cells increased by one half."""
    n, gained, lost = 92, 5, 2
    a = np.array([0] * gained + [1] * lost + [1] * (n - gained - lost))
    b = np.array([1] * gained + [0] * lost + [1] * (n - gained - lost))
    i = stats.graded_interval(a, b)
    d = (gained - lost) / (n + 2)
    half = 1.959964 / (n + 2) * math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / (n + 2))
    assert (i.low, i.high) == pytest.approx((d - half, d + half), abs=1e-6)
    assert i.p == pytest.approx(scipy_stats.binomtest(gained, gained + lost).pvalue)
    same = stats.graded_interval(a, a)
    assert same.high == -same.low == pytest.approx(1.959964 / (n + 2), abs=1e-6), "half a question each way"
    assert same.low < -0.01 < 0.01 < same.high and same.p == 1.0, "no change among 92 does not prove equality"


def test_what_is_added_changes_as_much_as_the_question_that_changed_most():
    """Two questions lost among many that moved a little: half of such a loss more is within reach."""
    d = np.r_[-1.0, -1.0, np.tile([0.25, -0.25], 20), np.zeros(51)]
    i = stats.change_interval(d)
    square, total = 2 + 40 / 16 + 1, 95
    half = 1.959964 / total * math.sqrt(square - 4 / total)
    assert (i.low, i.high) == pytest.approx((-2 / total - half, -2 / total + half), abs=1e-6)
    assert stats.graded_interval(np.ones(93), 1 + d).low == i.low and i.p is None


def test_scores_between_right_and_wrong_use_a_permutation():
    rng = np.random.default_rng(5)
    a = rng.integers(0, 4, 60) / 3
    assert stats.graded_interval(a, np.minimum(1, a + (rng.random(60) < 0.4) / 3)).p < 0.01
    assert stats.sign_flip([0.5, -0.5, 0.25, -0.25, 0.0]) > 0.5
    b = a.copy()
    b[:6] = np.where(a[:6] > 0.5, a[:6] - 1 / 3, a[:6] + 1 / 3)
    assert stats.graded_interval(a, b).p == stats.sign_flip(b - a)
    assert stats.sign_flip(np.zeros(9)) == 1.0


def test_many_flips_are_not_drawn(monkeypatch):
    d = np.random.default_rng(6).choice([-0.5, -0.25, 0.25, 0.5], 1000, p=[0.25, 0.27, 0.23, 0.25])
    drawn = stats.sign_flip(d)
    monkeypatch.setattr(stats, "FLIPS", 900)
    assert stats.sign_flip(d) == pytest.approx(drawn, abs=0.02) and 0.05 < drawn < 0.95
    assert stats.sign_flip(np.full(1000, 0.25)) < 1e-9


def test_a_ratio_of_sums_has_the_jackknifes_error():
    """Each of eight texts of unlike lengths left out once; they count as 7.2 texts."""
    totals, weights = np.array([3.0, -1, 4, 2, 8, 6, -2, 5]), np.array([10.0, 20, 30, 10, 40, 20, 10, 20])
    i = stats.weighted_interval(totals, weights, 0.9)
    ratio = totals.sum() / weights.sum()
    without = np.array([np.delete(totals, k).sum() / np.delete(weights, k).sum() for k in range(8)])
    error = math.sqrt(7 / 8 * ((without - ratio) ** 2).sum())
    freedom = (8 + weights.sum() ** 2 / (weights**2).sum()) / 2 - 1
    half = scipy_stats.t.ppf(0.95, freedom) * error
    assert (i.estimate, i.low, i.high, i.n) == pytest.approx((ratio, ratio - half, ratio + half, 8))
    assert i.p == pytest.approx(2 * scipy_stats.t.sf(ratio / error, freedom))
    found = (scipy_stats.t.ppf(0.95, freedom) + scipy_stats.t.ppf(stats.POWER, freedom)) * error
    assert i.detectable == pytest.approx(found)


def test_scores_between_right_and_wrong_are_surer():
    right = stats.share_interval([1, 0, 1, 1, 1, 0, 1, 0])
    assert right == stats.wilson(5, 8) and right.n == 8
    parts = stats.share_interval([0.75, 0.5, 0.75, 0.5, 0.5, 0.75, 0.5, 0.75])
    assert parts.estimate == right.estimate and parts.n == 8
    assert parts.high - parts.low < 0.6 * (right.high - right.low)
    assert stats.share_interval([1.0] * 5) == stats.wilson(5, 5)


def test_confidence_is_that_asked_for():
    a, b = [1.0, 1.2, 0.9, 1.4], [1.6, 1.5, 2.1, 1.9, 1.7]
    low, high = scipy_stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.8)
    i = stats.welch_interval(a, b, 0.8)
    assert (i.estimate, i.low, i.high, i.n) == pytest.approx((np.mean(b) - np.mean(a), low, high, 4))
    few = a[:3]
    low, high = scipy_stats.t.interval(0.8, 2, np.mean(few), scipy_stats.sem(few))
    assert (stats.centre_interval(few, 0.8).low, stats.centre_interval(few, 0.8).high) == pytest.approx((low, high))
    wide, narrow = (stats.centre_interval(np.sin(np.arange(9.0)), c) for c in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high
    low, high = scipy_stats.binomtest(7, 12).proportion_ci(0.8, method="wilson")
    assert (stats.wilson(7, 12, 0.8).low, stats.wilson(7, 12, 0.8).high) == pytest.approx((low, high))


def test_rounds_with_holes_keep_what_they_have():
    ratios = np.array([[0.1, 0.1, 0.1], [0.3, math.nan, 0.3], [math.nan] * 3])
    i = stats.rounds_interval(ratios)
    assert i.n == 2 and i.estimate == pytest.approx(0.2) and not i.known
    assert stats.trimmed(np.array([-9.0, 1, 2, 3, 90])) == pytest.approx(2), "a fifth is left out on either side"


def test_other_units():
    i = stats.Interval(1.0, 0.5, 2.0, 7, "m", 0.25, 0.75).scaled(100)
    assert i == stats.Interval(100.0, 50.0, 200.0, 7, "m", 0.25, 75.0)
    assert stats.unknown(1.0, 1).scaled(2).detectable is None


def test_sign_flips_of_three_values_are_all_tried():
    """Two of eight arrangements are as far from zero: p is a quarter."""
    assert stats.sign_flip([1.0, 2.0, 3.0, 0.0]) == pytest.approx(0.25)
    assert stats.sign_flip([0.0, 0.3]) == 1.0, "one change proves nothing"
    assert stats.sign_test([0.5, -0.1, 0.2, 0.3], tie=0.1) == pytest.approx(0.25)


def test_wilson_is_scipys():
    i = stats.wilson(74, 92)
    low, high = scipy_stats.binomtest(74, 92).proportion_ci(method="wilson")
    assert (i.low, i.high) == pytest.approx((low, high))
    assert 0.71 < i.low < 0.72 and 0.87 < i.high < 0.88  # 80 % of 92
    assert (stats.wilson(0, 10).low, stats.wilson(10, 10).high) == pytest.approx((0.0, 1.0))


def test_bands_show_the_middle_half():
    assert median_band([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_band([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0, 4.0)
