"""The benchmark of modes compares what it says, on texts that the model was made for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import modes
from ds4ref.nano import random_path
from ds4ref.nano.skills import tokenizer


@pytest.mark.thorough
def test_texts_are_long_enough_and_of_the_models_own_kind() -> None:
    rows = modes.texts("trained", "", 300)
    assert sum(map(len, rows)) >= 300 and all(row[0] == tokenizer().bos and row[-1] == tokenizer().eos for row in rows)
    rows = modes.texts("random", random_path(), 500)
    assert [len(row) for row in rows] == [400, 100]


@pytest.mark.thorough
def test_a_worker_computes_what_an_engine_here_does() -> None:
    rows = [[0, 5, 6, 7], [0, 9]]
    there = modes.run(random_path(), "exact", "cpu", "", rows)
    assert there.shape[0] == 6 and np.array_equal(there, modes.logits(random_path(), "exact", "cpu", rows))
