"""Snapshots handed from session to session: who shares rows, who copies them, what fits where."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import ContextError, PayloadError, SessionError
from ds4ref.session.session import Session

CTX = 300


@pytest.fixture(scope="module", params=["ds4"])
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return [int(t) for t in np.random.default_rng(9).integers(0, engine.shape.vocab, 700)]


def on(session: Session, tokens: list[int]) -> np.ndarray:
    return np.array([session.eval(token).copy() for token in tokens])


# ---- into other contexts


def test_what_does_not_fit_changes_nothing(engine: Engine, ids: list[int]) -> None:
    large, small, wanted = engine.session(200), engine.session(100), engine.session(100)
    large.sync(ids[:101])
    for session in (small, wanted):
        session.sync(ids[200:250])
    cache, snapshot = small._cache, large.snapshot()
    with pytest.raises(ContextError, match="101 tokens does not fit the context of 100"):
        small.restore(snapshot)
    with pytest.raises(ContextError, match="101 tokens does not fit the context of 100"):
        cache.reset(snapshot.cache)
    assert small.tokens == ids[200:250]
    np.testing.assert_array_equal(on(small, ids[:40]), on(wanted, ids[:40]))
    exact = engine.session(101)
    exact.restore(snapshot)
    np.testing.assert_array_equal(exact.logits, large.logits)


def test_of_another_engine(engine: Engine, ids: list[int], nano_path: str) -> None:
    session = engine.session(CTX)
    session.sync(ids[:20])
    before = session.logits.copy()
    with Engine.open(nano_path, numerics="exact") as other:
        foreign = other.session(CTX)
        foreign.sync(ids[:30])
        with pytest.raises(SessionError, match="engine it was taken from"):
            session.restore(foreign.snapshot())
    assert session.tokens == ids[:20]
    np.testing.assert_array_equal(session.logits, before)


def test_a_snapshot_keeps_its_logits(engine: Engine, ids: list[int]) -> None:
    session = engine.session(CTX)
    session.sync(ids[:20])
    snapshot, wanted = session.snapshot(), session.logits.copy()
    session.logits[:] = 0
    session.restore(snapshot)
    session.logits[:] = 1
    session.restore(snapshot)
    np.testing.assert_array_equal(session.logits, wanted)
    with pytest.raises(SessionError, match="no tokens"):
        engine.session(CTX).snapshot()


# ---- who copies


def test_caches_count_what_moves(engine: Engine, ids: list[int]) -> None:
    """``moves`` is all that tells a decoder that its recordings hold stale addresses."""
    cache = engine.model.cache(2000)

    def places() -> list[int]:
        fields = [(layer.raw, layer.comp, layer.index) for layer in cache.layers]
        rings = [ring for layer in cache.layers for pair in layer.projections.values() for ring in pair]
        return [array.ctypes.data for array in (*sum(fields, ()), *rings) if array is not None]

    def forward(count: int) -> None:
        engine.model.forward(np.zeros(count, np.int32), cache)

    seen = [(cache.moves, places())]

    def step(moved: bool) -> None:
        seen.append((cache.moves, places()))
        assert (seen[-1][0] != seen[-2][0]) == (seen[-1][1] != seen[-2][1]) == moved

    forward(10)
    step(False)
    early = cache.snapshot()
    forward(600)
    step(True)  # the ring of raw rows
    forward(30)
    late = cache.snapshot()
    cache.reset(early)
    step(False)
    forward(20)
    step(True)  # the late snapshot's rows are in the way
    cache.reset(late)
    step(True)


# ---- saved sessions


def test_a_saved_session_of_one_token_less_than_the_context(engine: Engine, ids: list[int]) -> None:
    """A context of n takes n - 1 saved tokens, as ds4 has it; n do not load."""
    session, other = engine.session(40), engine.session(40)
    session.sync(ids[:39])
    for fits in (True, False):
        stream = io.BytesIO()
        session.save(stream)
        stream.seek(0)
        if fits:
            other.load(stream)
            np.testing.assert_array_equal(other.eval(ids[39]), session.eval(ids[39]))
        else:
            with pytest.raises(PayloadError, match="takes 1 to 39"):
                other.load(stream)
