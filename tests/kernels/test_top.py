"""The op ``top``: what it calls the greatest, to the letter of ``ds4ref.sampling``, which chooses on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref import sampling
from ds4ref.kernels.ops import LEAST

from . import cpu, reference
from .cuda.device import cuda

every_backend = pytest.mark.parametrize("ops", [reference, cpu, cuda], ids=["reference", "cpu", "cuda"])
INF, NAN = np.inf, np.nan
ROWS = {
    "rising": np.arange(23),
    "falling": -np.arange(23),
    "all equal": np.zeros(23),
    "both zeros": np.where(np.arange(23) % 3, -0.0, 0.0),
    "minus zero first": [-0.0, 0.0, -1.0, 0.0, -0.0],
    "infinity wins": [1.0, INF, 3.0, INF, -INF],
    "no number loses": [NAN, -3.0, NAN, -2.0, -INF, -2.0],
    "negative bits of no number": [-2.0, -NAN, -3.0, NAN],
    "no number at all": [NAN] * 5,
    "nothing above the least": [-INF, 2 * LEAST, NAN, LEAST, -INF],
    "one above it": [-INF, 2 * LEAST, NAN, np.nextafter(np.float32(LEAST), np.float32(0)), LEAST],
    "largest and smallest": [np.finfo(np.float32).max, 1e-45, -1e-45, 0.0, np.finfo(np.float32).min],
    "alone": [NAN],
}


def row(values: Any) -> np.ndarray:
    found = np.array(values, np.float32)
    found[np.isnan(found) & (np.arange(len(found)) % 2 == 1)] *= -1  # NaNs of either sign
    return found


def same(values: np.ndarray, ids: np.ndarray, x: np.ndarray) -> None:
    """Values are those of x at their places, to the bit."""
    np.testing.assert_array_equal(values.view(np.int32), np.take_along_axis(x, ids, axis=1).view(np.int32))


@pytest.mark.parametrize("name", ROWS)
@every_backend
def test_the_first_is_what_the_host_would_pick(name: str, ops: Any) -> None:
    x = row(ROWS[name])[None]
    values, ids = ops.top(x, 1)
    assert ids[0, 0] == sampling.argmax(x[0])
    same(values, ids, x)


@pytest.mark.parametrize("name", [name for name in ROWS if len(ROWS[name]) > 1])  # type: ignore[arg-type]
@every_backend
def test_the_second_takes_the_place_of_an_excluded_first(name: str, ops: Any) -> None:
    x = row(ROWS[name])[None]
    _, ids = ops.top(x, 2)
    for excluded in range(x.shape[1]):
        first, second = ids[0]
        assert (first if first != excluded else second) == sampling.argmax(x[0], excluded)


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (7, 7), (8, 5), (9, 1), (100, 3), (512, 512), (513, 40), (1500, 64), (2048, 1024)]
)
@every_backend
def test_ranks_are_those_that_are_drawn_by(n: int, k: int, ops: Any) -> None:
    """Of few different values, so that ties lie on every border; in rows that are one block, and many."""
    rng = np.random.default_rng(n + k)
    for different in (3, 50, 100000):
        x = (rng.integers(-different, different, (3, n)) / np.float32(7)).astype(np.float32)
        values, ids = ops.top(x, k)
        for found, logits in zip(ids, x, strict=True):
            np.testing.assert_array_equal(found, sampling._best_ids(logits, k))
        same(values, ids, x)
