"""The mistakes of ``strangers`` are mistakes: each changes the logits, and is gone afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from tests.test_vectors.test_sixteen_bits import own_ids

pytestmark = pytest.mark.oracle

LEAST = 1e-4
"""Smallest change in nats (rms) that counts, as in ``benchmarks.places``."""


def test_every_mistake_has_an_effect_and_is_undone_to_the_bit(load_oracle) -> None:
    oracle = load_oracle(embedded_path("f16"), 1)
    from .strangers import EVERY, MISTAKES

    with Engine.open(embedded_path("f16"), numerics="exact", threads=1) as engine:
        ids = own_ids(engine, 200)
    right, layers = oracle.logits(ids), oracle.config.num_hidden_layers
    assert len({mistake.says for mistake in MISTAKES}) == 40
    for mistake in MISTAKES:
        with mistake.apply(oracle):
            moved = oracle.logits(ids) - right
        assert np.sqrt(np.mean((moved - moved.mean(axis=1, keepdims=True)) ** 2)) > LEAST, mistake.says
        assert np.array_equal(oracle.logits(ids), right), f"not undone: {mistake.says}"
        assert mistake.ops and EVERY <= mistake.layer < layers
