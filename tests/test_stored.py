"""The ways of keeping logits lose what their names say, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.test_vectors.observation import log_softmax

from .stored import WAYS, stored

STEP = {"float32": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8, "csv": 5e-5, "top20": 1e-6, "top20_rounded": 5e-5}
"""Largest error of a value between 8 and 16, over its size for the binary types."""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_lost(tmp_path, way) -> None:
    logits = np.random.default_rng(1).uniform(8, 16, (6, 50)).astype(np.float32)
    found = stored(tmp_path, way, np.arange(6), logits)
    right = log_softmax(logits)
    if found.support is not None:
        assert found.support.shape == (6, 20)
        right = np.take_along_axis(right, found.support, axis=1)
    size = 16 if "float" in way else 1
    error = np.abs(found.logprobs - right).max()
    assert error <= 2 * STEP[way] * size, "twice: the normalisation moves too"
    if way not in ("float32", "top20"):
        assert error > 0.1 * STEP[way] * size
