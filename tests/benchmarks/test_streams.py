"""The measurement of answers under way at once: what it asks, and that it finds what it should."""

import numpy as np
import pytest

from benchmarks import streams


def test_what_is_asked():
    assert streams.body(3, 7, None)["temperature"] == 0 and "seed" not in streams.body(3, 7, None)
    drawn = streams.body(3, 7, 5)
    assert (drawn["seed"], drawn["temperature"], drawn["max_tokens"], drawn["stream"]) == (5, 1, 7, True)
    assert streams.body(3, 7, None)["messages"] != streams.body(4, 7, None)["messages"]
    assert streams.spread([1.0, 2.0, 4.0], 1) == "2.0 (1.5 to 3.0)"


@pytest.mark.slow
def test_no_text_differs_and_short_answers_come_soon():
    found = streams.measure(1, 20, 1, None)
    assert found["differ"] == 0 and found["texts"] == 1 + 2 + 4 + 8 + streams.BESIDE
    assert np.median(found["ratio"]) < 1.5
    assert np.median(found["beside"]["in turns"]) < np.median(found["beside"]["one by one"])
