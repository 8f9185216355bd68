"""A machine that changes while it is measured is noticed, and one that does not is not accused."""

import numpy as np
import pytest

from speed_bench.drift import drift, notes, sign_test


def test_drift_is_found_and_not_imagined():
    rng = np.random.default_rng(2)
    falling = np.linspace(0, -0.05, 40) + rng.normal(0, 0.01, 40)
    assert sign_test(falling) < 0.001
    flat = [sign_test(rng.normal(0, 1, 40)) < 0.05 for _ in range(400)]
    assert np.mean(flat) <= 0.06
    assert sign_test([1.0] * 10) == sign_test([]) == 1.0


def rows(change, reps=5):
    return [
        {"rep": rep, "ctx_tokens": depth, "prefill_tps": 400.0, "gen_tps": (30 - depth / 1000) * (1 - change * rep)}
        for rep in range(reps) for depth in range(1000, 9000, 1000)
    ]  # fmt: skip


def test_depth_is_no_drift():
    assert drift(rows(0.0), "gen_tps") == pytest.approx((1.0, 0.0)) and notes(rows(0.0)) == []


def test_what_is_said():
    (note,) = notes(rows(0.02))
    assert note.startswith("decode drifted -") and "from first to second half" in note


def test_one_walk_cannot_tell():
    assert notes(rows(0.02, reps=1)) == []
