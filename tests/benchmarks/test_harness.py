"""Rows, rounds and the time allowed: what turns timings into figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import harness
from benchmarks.harness import Budget, OutOfTime, Target, document, interleave, row
from benchmarks.matvec import FORMATS
from ds4ref.kernels import formats


@pytest.mark.parametrize("samples", [[3.0, 1.0, 2.0], [4.0, 1.0, 2.0, 3.0], list(np.array([1.0, 2.0]))])
def test_a_row_is_the_median_and_the_range_in_strict_json(samples) -> None:
    found = row("x", samples, "s", 2.5)
    assert (found.value, found.low, found.high) == (np.median(samples), 1.0, max(samples))
    (told,) = json.loads(document([found], {"cpu": "x"}))
    assert told == {
        "item": "x", "value": found.value, "unit": "s", "bar": 2.5, "better": "higher", "low": 1.0,
        "high": max(samples), "n": len(samples), "note": "", "met": bool(found.value >= 2.5), "run": {"cpu": "x"},
    }  # fmt: skip
    with pytest.raises(ValueError, match="not JSON compliant"):
        document([row("x", [float("nan")])], {})


def test_bars_are_met_in_their_direction_and_not_without_a_value() -> None:
    assert [row("speed", [v], "x", 2.0).met for v in (1.9, 2.0, 2.1)] == [False, True, True]
    assert [row("time", [v], "s", 2.0, "lower").met for v in (1.9, 2.0, 2.1)] == [True, True, False]
    found = row("time", [], "s", 2.0, note="out of time")
    assert (found.value, found.met, found.note, found.n) == (None, None, "out of time", 0)


def test_targets_take_turns_and_the_order_turns_round() -> None:
    calls: list[str] = []

    def target(name: str) -> Target:
        return lambda: float(len(calls)) if calls.append(name) is None else 0.0

    samples = interleave({"a": target("a"), "b": target("b")}, rounds=3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert samples == {"a": [3.0, 6.0, 7.0], "b": [4.0, 5.0, 8.0]}


def test_the_budget_refuses_what_does_not_fit(monkeypatch) -> None:
    Budget(None).need(1e9)
    now = [100.0]
    monkeypatch.setattr(harness.time, "monotonic", lambda: now[0])
    budget = Budget(10)
    for spent in (0, 6, 10):
        now[0] = 100.0 + spent
        budget.need(10 - spent)
        with pytest.raises(OutOfTime, match=f"{spent} of 10 s"):
            budget.need(11 - spent)


def test_the_formats_are_those_of_the_tensor_table() -> None:
    assert all(formats.FORMATS[fmt].activation == act for fmt, (act, _) in FORMATS.items())
