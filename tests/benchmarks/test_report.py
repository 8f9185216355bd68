"""Rows, rounds and the time allowed: what turns timings into figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.goals import FORMATS, GOALS
from benchmarks.report import Goal, document, row


@pytest.mark.parametrize(
    ("samples", "value", "low", "high"), [([3.0, 1.0, 2.0], 2.0, 1.0, 3.0), ([4.0, 1.0, 2.0, 3.0], 2.5, 1.0, 4.0)]
)
def test_a_row_is_the_median_and_the_range(samples, value, low, high) -> None:
    found = row(Goal("x", "s"), samples)
    assert (found.value, found.low, found.high, found.n, found.met) == (value, low, high, len(samples), None)


def test_bars_are_met_in_their_direction() -> None:
    more, less = Goal("speed", "x", 2.0), Goal("time", "s", 2.0, None, "lower")
    assert [row(more, [v]).met for v in (1.9, 2.0, 2.1)] == [False, True, True]
    assert [row(less, [v]).met for v in (1.9, 2.0, 2.1)] == [True, True, False]


def test_what_was_not_measured_says_why() -> None:
    found = row(GOALS["nano"], [], "out of time")
    assert (found.value, found.met, found.note, found.bar) == (None, None, "out of time", 500)


def test_the_document_is_strict_json() -> None:
    text = document([row(GOALS["nano"], [600.0])], {"cpu": "x"})
    assert json.loads(text)[0] | {"note": ""} == {
        "item": "random model, decode", "value": 600.0, "bar": 500, "stretch": 1500, "unit": "tok/s",
        "better": "higher", "low": 600.0, "high": 600.0, "n": 1, "note": "", "met": True,
        "run": {"cpu": "x"},
    }  # fmt: skip
    with pytest.raises(ValueError, match="not JSON compliant"):
        document([row(GOALS["nano"], [float("nan")])], {})


def test_numbers_of_numpy_become_plain_ones() -> None:
    found = row(GOALS["nano"], list(np.array([1.0, 2.0])))
    assert type(found.value) is float and type(found.met) is bool
    document([found], {})


def test_arms_take_turns_and_the_order_turns_round() -> None:
    calls: list[str] = []

    def arm(name: str) -> timing.Arm:
        return lambda: float(len(calls)) if calls.append(name) is None else 0.0

    samples = timing.interleave({"a": arm("a"), "b": arm("b")}, rounds=3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert samples == {"a": [3.0, 6.0, 7.0], "b": [4.0, 5.0, 8.0]}


def test_the_budget_refuses_what_does_not_fit() -> None:
    timing.Budget(None).need(1e9)
    timing.Budget(10).need(5)
    with pytest.raises(timing.OutOfTime, match="of 10 s"):
        timing.Budget(10).need(11)


def test_every_row_belongs_to_one_section() -> None:
    from fnmatch import fnmatchcase

    from benchmarks.cpu import SECTIONS

    for name in GOALS:
        owners = [s for s, (_, patterns, _) in SECTIONS.items() if any(fnmatchcase(name, p) for p in patterns)]
        assert len(owners) == 1, (name, owners)


def test_the_formats_are_those_of_the_tensor_table() -> None:
    from ds4ref.kernels import formats

    assert all(formats.FORMATS[fmt].activation == act for fmt, act in FORMATS.items())
