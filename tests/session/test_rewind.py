"""Going back a few tokens, and short chunks that equal single tokens: what speculative decoding rests on."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import ContextError, SessionError, TokenError
from ds4ref.session.session import Session

CTX = 400


@pytest.fixture(scope="module", params=["ds4"])
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return [int(t) for t in np.random.default_rng(8).integers(0, engine.shape.vocab, 320)]


@pytest.fixture(scope="module")
def alone(engine: Engine, ids: list[int]) -> dict[int, np.ndarray]:
    """Logits after each number of tokens, of a session that evaluates one by one and never goes back."""
    session = engine.session(CTX)
    return {at + 1: session.eval(token).copy() for at, token in enumerate(ids)}


def decoded(engine: Engine, tokens: list[int]) -> Session:
    session = engine.session(CTX)
    for token in tokens:
        session.eval(token)
    return session


@pytest.mark.parametrize(("at", "furthest"), [(160, 125), (196, 161), (197, 165), (200, 165), (201, 169)])
def test_as_far_back_as_both_windows_that_a_row_is_made_of(
    engine: Engine, ids: list[int], alone: dict, at: int, furthest: int
) -> None:
    """A compressed row of ratio 4 is made of its window and the one before, of which a ring holds 40 tokens, and the
    token gone back to is evaluated again. One window further the next row mixes in others: wrong logits, no error."""
    assert {engine.shape.state_rows(layer) for layer, ratio in enumerate(engine.shape.ratios) if ratio == 4} == {8}
    session = decoded(engine, ids[:at])
    with pytest.raises(SessionError, match="too far back"):
        session.rewind(furthest - 1)
    session.rewind(furthest)
    for token in ids[furthest : furthest + 9]:
        np.testing.assert_array_equal(session.eval(token), alone[session.pos])


def test_back_after_a_growing_ring(engine: Engine, ids: list[int]) -> None:
    """A chunk too long for the ring of raw rows moves it: what is behind the chunk is out of reach then."""
    count = 3 * engine.shape.window + 10
    long = [int(t) for t in np.random.default_rng(1).integers(0, engine.shape.vocab, count)]
    session, wanted = engine.session(3000), engine.session(3000)
    for each in (session, wanted):
        each.extend(ids[:20])
    session.extend(long, chunk=2000)
    with pytest.raises(SessionError, match="too far back"):
        session.rewind(18)
    session.rewind(20 + count - 5)
    wanted.extend(long[:-6], chunk=2000)
    np.testing.assert_array_equal(session.logits, wanted.eval(long[-6]))


# ---- streams


def test_streams_are_what_logits_come_from(engine: Engine, ids: list[int]) -> None:
    session, model = engine.session(CTX), engine.model
    with pytest.raises(SessionError, match="no hidden state"):
        _ = session.streams
    session.eval(ids[0])
    kept = [session.streams.copy()]
    np.testing.assert_array_equal(model.logits(session.streams)[0], session.logits)
    several: list[np.ndarray] = []
    out = session.extend(ids[1:150], chunk=64, streams=several)
    assert [len(part) for part in several] == [63, 64, 22]
    assert all(part.dtype == np.float32 for part in several)
    np.testing.assert_array_equal(several[-1][-1:], session.streams)
    session.eval(5)
    at = 0
    for part in several:
        np.testing.assert_array_equal(model.logits(part), out[at : at + len(part)])
        at += len(part)
    assert not np.array_equal(kept[0], session.streams)
    session.restore(session.snapshot())
    with pytest.raises(SessionError, match="no hidden state"):
        _ = session.streams


def test_extend_refuses_what_does_not_fit(engine: Engine, ids: list[int]) -> None:
    session = engine.session(10)
    with pytest.raises(ContextError, match="10 tokens do not fit the context of 10; a prompt must leave one slot free"):
        session.extend(ids[:10])
    assert session.extend([]).shape == (0, engine.shape.vocab) and session.pos == 0
    session.extend(ids[:9])
    with pytest.raises(TokenError, match=f"{engine.shape.vocab} at position 10"):
        session.extend([0, engine.shape.vocab])
    with pytest.raises(ContextError, match="11 tokens do not fit the context of 10$"):
        session.extend([0, 1])
    with pytest.raises(SessionError, match="at least 1 token, got -1"):
        session.extend([0], chunk=-1)
    assert session.tokens == ids[:9]
    session.extend([0])
    assert session.pos == 10
