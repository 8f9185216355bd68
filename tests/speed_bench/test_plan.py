"""The frontier walk against sequences that ds4-bench was run for (docs/reference/bench.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.speed_bench.plan import frontiers


@pytest.mark.parametrize(
    ("factor", "depths"),
    [
        (2, [2048, 4096, 8192, 16384, 32768]),
        (1.5, [2048, 3072, 4608, 6912, 10368, 15552, 23328, 32768]),
        (3, [2048, 6144, 18432, 32768]),
    ],
)
def test_geometric_walks(factor, depths):
    assert list(frontiers(2048, 32768, factor=factor)) == depths


def test_the_canonical_sweep():
    depths = list(frontiers(2048, 65536, 2048))
    assert len(depths) == 32 and depths[0] == 2048 and depths[-1] == 65536
    assert {b - a for a, b in zip(depths, depths[1:], strict=False)} == {2048}


@pytest.mark.parametrize(
    ("arguments", "depths"),
    [
        ((10, 35, 10), [10, 20, 30, 35]),
        ((10, 30, 10), [10, 20, 30]),
        ((7, 7, 1), [7]),
        ((1, 4, 2048, 1.0001), [1, 2, 3, 4]),
        ((1, 3, 10**9), [1, 3]),
        ((5, 1000, 1, 1e6), [5, 1000]),
    ],
)
def test_edges(arguments, depths):
    assert list(frontiers(*arguments)) == depths


@given(st.integers(1, 500), st.integers(0, 2000), st.integers(1, 300), st.floats(1, 8))
def test_a_walk_rises_strictly_and_always_measures_the_end(start, more, incr, factor):
    depths = list(frontiers(start, start + more, incr, factor))
    assert depths[0] == start and depths[-1] == start + more
    gaps = [b - a for a, b in zip(depths, depths[1:], strict=False)]
    assert all(gap > 0 for gap in gaps)
    if factor == 1.0:
        assert all(gap == incr for gap in gaps[:-1]) and all(gap <= incr for gap in gaps)
    else:
        assert all(b >= a * factor for a, b in zip(depths, depths[1:-1], strict=False))


@pytest.mark.parametrize("arguments", [(0, 5), (6, 5), (1, 5, 0), (1, 5, 1, 0.5), (1, 5, 1, float("inf"))])
def test_walks_that_cannot_be(arguments):
    with pytest.raises(ValueError):
        list(frontiers(*arguments))
