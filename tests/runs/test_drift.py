"""A machine that changes while it is measured is noticed, and one that does not is not accused."""

import numpy as np
import pytest

from ds4ref.runs.drift import drift, notes, trend


def test_drift_is_found_and_not_imagined():
    rng = np.random.default_rng(2)
    falling = np.linspace(0, -0.05, 40) + rng.normal(0, 0.01, 40)
    assert trend(falling) < 0.001
    flat = [trend(rng.normal(0, 1, 40)) < 0.05 for _ in range(400)]
    assert np.mean(flat) <= 0.06
    assert trend([1.0] * 10) == trend([]) == 1.0


def rows(change, reps=5):
    return [
        {"rep": rep, "ctx_tokens": depth, "prefill_tps": 400.0, "gen_tps": (30 - depth / 1000) * (1 - change * rep)}
        for rep in range(reps) for depth in range(1000, 9000, 1000)
    ]  # fmt: skip


def test_the_middle_of_an_odd_series_is_on_neither_side():
    """Cox and Stuart: eight pairs that all rise, whatever the ninth of seventeen values was."""
    for middle in (-9.0, 9.0):
        assert trend([0.0] * 8 + [middle] + [1.0] * 8) == pytest.approx(2 / 2**8)


def test_the_change_is_that_of_the_speed():
    slower = [{"rep": rep, "ctx_tokens": depth, "gen_tps": speed * (1 - 0.1 * rep)}
              for rep in (0, 1) for depth, speed in ((64, 50.0), (128, 20.0), (256, 10.0))]  # fmt: skip
    assert drift(slower, "gen_tps")[1] == pytest.approx(-10)
    assert drift(slower[::-1], "gen_tps")[1] == pytest.approx(-10), "order is that of the measurement, not of the file"


def test_time_within_a_repetition_counts_where_it_is_known():
    """Probes of one repetition may end at one depth; the first of all begins at second 0."""
    rows = [{"rep": rep, "ctx_tokens": 64, "test": f"t{at}", "at": 10 * rep + at, "gen_tps": 10.0 + (rep, -rep)[at > 1]}
            for rep in (0, 1) for at in (3, 2, 1, 0)]  # fmt: skip
    assert drift(rows, "gen_tps")[0] == 1.0, "two of four tests got faster, two slower"


def test_depth_is_no_drift():
    assert drift(rows(0.0), "gen_tps") == pytest.approx((1.0, 0.0)) and notes(rows(0.0)) == []


def test_what_is_said():
    (note,) = notes(rows(0.02))
    assert note.startswith("decode drifted -") and "from first to second half" in note


def test_one_walk_cannot_tell():
    assert notes(rows(0.02, reps=1)) == []
