"""Sessions with a long past that was never computed behave like sessions: shapes, counts, finite logits."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.depth import session_at
from ds4ref.engine import Engine
from ds4ref.nano import random_path


@pytest.fixture(scope="module")
def engine():
    with Engine.open(random_path(), numerics="ds4") as engine:
        yield engine


@pytest.mark.thorough
@pytest.mark.parametrize("pos", [0, 1, 63, 127, 128, 1000, 5003])
def test_decode_and_prefill_go_on(engine: Engine, pos: int) -> None:
    session = session_at(engine, pos)
    assert session.pos == pos
    for token in range(5):
        assert np.isfinite(session.eval(token)).all()
    session.sync([*session.tokens, *range(140)])
    assert np.isfinite(session.logits).all()
    cache = session._cache
    for layer, ratio in enumerate(engine.shape.ratios):
        for kind in cache.layers[layer].projections:
            rows = cache.compressed(layer, kind)
            assert len(rows) == session.pos // ratio and np.isfinite(rows).all()


def test_rows_are_what_the_mode_could_have_stored(engine: Engine) -> None:
    cache = session_at(engine, 4000)._cache
    ops = engine.model.ops
    layer = engine.shape.ratios.index(4)
    assert cache.compressed(layer, "attn").dtype == np.float16
    index = cache.compressed(layer, "indexer").astype(np.float32)
    assert np.array_equal(ops.round_e2m1(index), index)
