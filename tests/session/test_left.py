"""What a replayed token leaves on the device: the choice comes to the host with it, logits and streams when asked for,
and never those of another token."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref import decode, sampling
from ds4ref.engine import Engine
from ds4ref.errors import SessionError, TokenError
from ds4ref.generate import Generation, check_finite
from ds4ref.sampling import Sampler
from ds4ref.session.session import Session
from tests.archs import dense
from tests.marking import sampled


@pytest.fixture(scope="module", params=["exact", "qat", "ds4"])
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


@pytest.fixture(scope="module")
def one(nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics="ds4")


class Asking(Session):
    """A session that knows nothing but logits: who asks it chooses on the host."""

    def argmax(self, exclude: int | None = None) -> int:
        return sampling.argmax(self.logits, exclude)

    def ranked(self, k: int) -> None:
        return None

    def logit(self, token: int) -> float:
        return float(self.logits[token])


def counted(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what is brought to the host from now on."""
    seen: list[tuple[int, ...]] = []
    ops: Any = session.model.ops
    real = ops.host

    def host(array: Any) -> np.ndarray:
        seen.append(array.shape)
        return real(array)

    monkeypatch.setattr(ops, "host", host)
    return seen


def ids(engine: Engine, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(5).integers(0, engine.shape.vocab, count)]


SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "top 40": {"temperature": 1.0, "top_k": 40, "min_p": 0.0},
    "top 7, nucleus": {"temperature": 2.0, "top_k": 7, "top_p": 0.8},
    "top 64, hot": {"temperature": 1e30, "top_k": 64, "min_p": 0.0},
    "top 100": {"temperature": 1.0, "top_k": 100, "min_p": 0.0},
    "all": {"temperature": 0.8},
}


@pytest.mark.parametrize("name", sampled(SAMPLERS, 3))
def test_the_text_is_that_of_choosing_on_the_host(name: str, engine: Engine) -> None:
    texts = []
    for kind in (Session, Asking):
        session = kind(engine.model, 300)
        session.sync(ids(engine, 20))
        sampler = Sampler(**{"seed": 3, **SAMPLERS[name]})
        run = Generation(session, engine.tokenizer, sampler, limit=60)
        pieces = [piece.text for piece in run]
        texts.append((pieces, run.tokens, run.finish, session.logits.tobytes(), sampler.rng.state))
    assert texts[0] == texts[1] and len(texts[0][1]) > 10


def test_a_greedy_token_brings_one_choice_and_no_logits(one: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = one.session(200)
    session.sync(ids(one, 9))
    seen = counted(session, monkeypatch)
    list(Generation(session, one.tokenizer, Sampler(0.0), limit=30))
    assert len(seen) >= 20 and set(seen) == {(1, decode.RANKS)}
    best = session.argmax()
    assert session.logit(best) == session.logits[best] and (1, one.shape.vocab) in seen
    assert session.argmax(exclude=best) == sampling.argmax(session.logits, best) != best


@pytest.mark.parametrize("vocab", [1, 2, 10])
def test_a_small_vocabulary(vocab: int, tmp_path: Path) -> None:
    shape = replace(dense.draw_shape(1, dense.FAMILIES["llama"]), n_layers=1, vocab=vocab)
    path = dense.write(tmp_path / "small.gguf", shape, dense.draw_tensors(shape, 1, True))
    with Engine.open(path) as engine:
        session = engine.session(20)
        for _ in range(2):  # the second one after all of them were asked for
            session.append(0)
            assert session.argmax() == sampling.argmax(session.logits)
            if vocab > 1:
                assert session.argmax(exclude=1) == sampling.argmax(session.logits, 1)
            best = session.ranked(40)
        assert best[0].tolist() == sampling._best_ids(session.logits, vocab).tolist()
        assert Sampler(1.0, top_k=40, seed=1).choose(session) == Sampler(1.0, top_k=40, seed=1).pick(session.logits)
        with pytest.raises(TokenError) if vocab == 1 else contextlib.nullcontext():
            session.argmax(exclude=0)


def test_best_tokens_come_with_the_token_once_asked_for(one: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = one.session(200)
    session.sync(ids(one, 9))
    assert session.ranked(40) is None  # of a prefill only logits tell
    session.append(1)
    seen = counted(session, monkeypatch)
    best, values = session.ranked(40)
    assert not seen
    assert best.tolist() == sampling._best_ids(session.logits, 40).tolist()
    assert values.tobytes() == session.logits[best].tobytes()
    assert session.ranked(decode.MOST_RANKS + 1) is None
    session.append(2)
    assert len(session.ranked(3)[0]) == 3 and len(session._replayed.best) == 40
    list(Generation(session, one.tokenizer, Sampler(1.0, top_k=40, seed=1), limit=20))
    assert (1, one.shape.vocab) in seen  # those that were asked for above
    del seen[:]
    list(Generation(session, one.tokenizer, Sampler(1.0, top_k=40, seed=1), limit=20))
    assert seen and set(seen) == {(1, 40)}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_choice_that_is_no_number_is_an_error(value: float, one: Engine) -> None:
    session = one.session(30)
    session.append(3)
    session._replayed.values[0] = value
    with pytest.raises(SessionError, match="the logits at position 1 are not finite"):
        check_finite(session, session.argmax())


def test_what_was_handed_out_stays_as_it_was(one: Engine) -> None:
    session = one.session(60)
    session.sync(ids(one, 6))
    handed = []
    for token in range(12):
        session.append(token)
        handed.append((session.logits, session.logits.copy(), session.streams, session.streams.copy()))
    for logits, then, streams, streams_then in handed:
        assert np.array_equal(logits, then) and np.array_equal(streams, streams_then)
    assert len({then.tobytes() for _, then, *_ in handed}) == 12
