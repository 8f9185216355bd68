"""What the first wrong position reveals, as parts of the model begin to have an effect at known positions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ds4ref.nano.diagnostic import DIAGNOSTIC
from ds4ref.test_vectors.diagnosis.onsets import change_point, narrowed

SHAPE = dataclasses.replace(DIAGNOSTIC, window=24, index_topk=8, ratios=(0, 4, 128))


@pytest.mark.parametrize(
    ("first", "word"),
    [
        (0, "single tokens"), (1, "rotary"), (2, "rotary"), (3, "ratio 4: the first"), (7, "ratio 4: the second"),
        (24, "window"), (26, "window"), (27, "first happens at position 27"), (35, "indexer"),
        (127, "ratio 128: the first"), (255, "ratio 128: the second"), (64, "chunk of 64"), (63, "first happens"),
    ],
)  # fmt: skip
def test_the_narrowest_part_comes_first(first, word) -> None:
    """Position t follows t + 1 tokens: 4 tokens make a compressed row, 36 tokens more rows than the indexer selects."""
    assert word in narrowed(SHAPE, first, True)[0]


def test_a_step_is_found_where_it_is() -> None:
    noise = np.random.default_rng(3).normal(0, 0.3, 200)
    for at in (20, 50, 170):
        result = change_point(noise + 0.8 * (np.arange(200) >= at))
        assert result is not None and abs(result - at) <= 4
    assert change_point(noise) is None and change_point(noise[:15]) is None
    assert change_point(noise - 0.8 * (np.arange(200) >= 50)) is None  # better from there on is no beginning
