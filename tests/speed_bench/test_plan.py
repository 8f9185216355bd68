"""Depths against sequences that ds4-bench was run for (docs/reference/bench.md); tests and lists in llama-bench's
words."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.console.options import choices, integers
from ds4ref.errors import UsageError
from ds4ref.speed_bench.plan import BenchTarget, Plan, Probe, sweep_depths


@pytest.mark.parametrize("arguments, depths", [
    ((2048, 32768, 2048, 2), [2048, 4096, 8192, 16384, 32768]),
    ((2048, 32768, 2048, 1.5), [2048, 3072, 4608, 6912, 10368, 15552, 23328, 32768]),
    ((2048, 65536, 2048), list(range(2048, 65537, 2048))), ((10, 35, 10), [10, 20, 30, 35]),
    ((10, 30, 10), [10, 20, 30]), ((7, 7, 1), [7]), ((1, 4, 2048, 1.0001), [1, 2, 3, 4]), ((1, 3, 10**9), [1, 3]),
    ((5, 1000, 1, 1e6), [5, 1000]),
])  # fmt: skip
def test_depths(arguments, depths):
    assert list(sweep_depths(*arguments)) == depths


@given(st.integers(1, 500), st.integers(0, 2000), st.integers(1, 300), st.floats(1, 8))
def test_depths_rise_strictly_and_always_end_at_the_last(start, more, step, factor):
    depths = list(sweep_depths(start, start + more, step, factor))
    assert depths[0] == start and depths[-1] == start + more
    gaps = [b - a for a, b in zip(depths, depths[1:], strict=False)]
    assert all(gap > 0 for gap in gaps)
    if factor == 1.0:
        assert all(gap == step for gap in gaps[:-1]) and all(gap <= step for gap in gaps)
    else:
        assert all(b >= a * factor for a, b in zip(depths, depths[1:-1], strict=False))


@pytest.mark.parametrize(
    "fields", [{}, {"depths": (8,), "probes": (Probe(8, 0, 0),)}, {"depths": (16, 8)}, {"depths": (0, 8)}]
)
def test_plans_that_cannot_be(fields):
    with pytest.raises(UsageError):
        Plan((BenchTarget(),), **fields)


@pytest.mark.parametrize("text, found", [
    ("3", [3]), ("1,2,4", [1, 2, 4]), ("1-4", [1, 2, 3, 4]), ("0-8+4", [0, 4, 8]), ("1-9*2", [1, 2, 4, 8]),
    ("7,1-5+3", [7, 1, 4]),
])  # fmt: skip
def test_lists_and_ranges(text, found):
    assert integers(0)(text) == found


@pytest.mark.parametrize("text", ["", "1,", "4-1", "1-4*1", "0-8*2", "1-4+0", "a-b", "-1", "1-99999999"])
def test_no_lists(text):
    for read in (integers(0), choices("cpu", "reference")):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)
