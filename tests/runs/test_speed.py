"""Comparing the speeds of two runs: which rows belong together, and what is said of a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ds4ref.runs import stats
from ds4ref.runs.speed import (
    BETTER,
    REFUSED,
    SAME,
    UNCLEAR,
    WORSE,
    common,
    in_turn,
    judge,
    per_cent,
    refused,
    said,
)  # fmt: skip
from ds4ref.runs.stats import Interval, unknown


@pytest.mark.parametrize(
    ("estimate", "low", "high", "said"),
    [
        (0.0, -1.0, 1.0, SAME),  # the whole interval, its ends included
        (0.0, -1.01, 1.0, UNCLEAR),
        (0.0, -1.0, 1.01, UNCLEAR),
        (1.0, 0.5, 1.5, BETTER),  # the margin itself
        (0.99, 0.5, 1.48, UNCLEAR),
        (5.0, 0.2, 9.8, UNCLEAR),  # a floor below which nothing is said
        (5.0, 0.21, 9.79, BETTER),
        (-1.0, -1.5, -0.5, WORSE),
        (-5.0, -9.8, -0.2, UNCLEAR),
        (-5.0, -9.79, -0.21, WORSE),
        (5.0, -math.inf, math.inf, UNCLEAR),
    ],
)
def test_what_is_said_of_a_difference(estimate, low, high, said):
    assert judge(Interval(estimate, low, high, 5, "x"), 1.0, 0.2) == said


def test_a_log_ratio_in_per_cent():
    found = per_cent(Interval(math.log(1.1), math.log(0.9), math.log(1.5), 5, "x", 0.5, math.log(1.2)))
    assert (found.estimate, found.low, found.high) == pytest.approx((10, -10, 50))
    assert found.detectable == pytest.approx(20) and (found.n, found.p) == (5, 0.5)
    assert per_cent(stats.unknown(0.0, 1)).high == math.inf


def row(depth, rep, prefill, gen, tokens=64, **more):
    return {
        "ctx_tokens": depth,
        "rep": rep,
        "prefill_tokens": tokens,
        "prefill_tps": prefill,
        "gen_tokens": 8,
        "gen_tps": gen,
        **more,
    }


def test_only_equal_work_is_compared():
    """A place that one run lacks, prefilled in other steps, or did not measure, is left out of both."""
    one = [row(64, 0, 1.0, 2.0), row(128, 0, 1.0, 2.0), row(256, 0, 1.0, 0.0), row(64, 0, 1.0, 2.0, test="pp64")]
    other = [row(64, 0, 4.0, 2.0), row(128, 0, 4.0, 2.0, tokens=32), row(256, 0, 4.0, 2.0)]
    prefill = common(one, other, "prefill_tps", "prefill_tokens")
    assert prefill == ({(64, ""): {0: 1.0}, (256, ""): {0: 1.0}}, {(64, ""): {0: 4.0}, (256, ""): {0: 4.0}})
    assert list(common(one, other, "gen_tps", "gen_tokens")[1]) == [(64, ""), (128, "")]


def test_repetitions_are_paired_by_their_number():
    """The third repetition of one lane is that of the other, also where one lane lost its first two."""
    speeds = [100.0, 110.0, 90.0, 105.0, 95.0]
    one = [row(64, rep, speed, 50.0) for rep, speed in enumerate(speeds)]
    gains = [1.02, 1.04, 1.03, 1.05, 1.01]
    other = [
        row(64, rep, speed * gain, 50.0 * gain) for rep, (speed, gain) in enumerate(zip(speeds, gains, strict=True))
    ]
    for a, b, left in ((one, other, gains), (one, other[2:], gains[2:]), (one[2:], other, gains[2:])):
        found = in_turn(a, b)
        wanted = stats.centre_interval(np.log(left), 1 - 0.02 / 2)
        for name in ("prefill", "decode"):
            assert found[name].n == len(left), name
            assert (found[name].estimate, found[name].low) == pytest.approx((wanted.estimate, wanted.low)), name
    alone = in_turn(*([{**entry, "gen_tps": 0.0} for entry in rows] for rows in (one, other)))
    wanted = stats.centre_interval(np.log(gains), 1 - 0.02)
    assert list(alone) == ["prefill"] and alone["prefill"].low == pytest.approx(wanted.low), "all error is its own"


@pytest.mark.parametrize("i, verdict, words", [
    (Interval(23.0, 20.0, 26.0, 5, "t"), BETTER, "decode: B is 1.23 x (1.20 to 1.26) as fast as A: faster"),
    (Interval(-6.0, -7.04, -5.0, 5, "t"), WORSE, "decode: B is 0.94 x (0.93 to 0.95) as fast as A: slower"),
    (Interval(0.1, -0.5, 0.7, 5, "t"), SAME, "decode: B is 1.001 x (0.995 to 1.007) as fast as A: same within 1 %"),
    (Interval(0.0, -0.02, 0.03, 5, "t"), SAME,
     "decode: B is 1.0000 x (0.9998 to 1.0003) as fast as A: same within 1 %"),
    (Interval(2.0, -3.0, 7.0, 5, "t", None, 8.04), UNCLEAR,
     "decode: B is 1.02 x (0.97 to 1.07) as fast as A: unclear, 5 rounds detect 8.0 %"),
    (unknown(5.0, 2), UNCLEAR, "decode: B is 1.05 x as fast as A (no interval: too few values)"),
    (unknown(50.0, 1), BETTER, "decode: B is 1.50 x as fast as A (faster, no interval: too few values)"),
    (refused("B: 3 of 4 rows have warnings: busy"), REFUSED,
     "decode: B is not compared with A: B: 3 of 4 rows have warnings: busy"),
])  # fmt: skip
def test_a_comparison_is_one_sentence(i, verdict, words):
    assert said("decode", i, verdict) == words
    assert said("decode", i, verdict, 1.0, "old", "new").startswith("decode: new is ")
