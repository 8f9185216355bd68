"""Going back a few tokens, and short chunks that equal single tokens: what speculative decoding rests on."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ds4ref import sampling
from ds4ref.engine import Engine
from ds4ref.errors import Cancelled, ContextError, SessionError, TokenError
from ds4ref.session.session import Session
from tests.marking import sampled

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


@pytest.mark.parametrize("engine", sampled(["exact", "ds4"], ["ds4"]), indirect=True)
@pytest.mark.parametrize("at", [40, 136])
def test_back_any_number_of_tokens_within_reach(engine: Engine, ids: list[int], alone: dict, at: int) -> None:
    """Within a window, and over what closed since: up to eight windows of 4, and one of 128."""
    session = decoded(engine, ids[:at])
    for back in range(1, 33):
        session.rewind(at - back)
        assert session.tokens == ids[: at - back]
        np.testing.assert_array_equal(session.logits, alone[at - back])
        other = [token ^ 1 for token in ids[at - back : at]]
        session.eval(other[0])
        session.rewind(at - back)
        for token in ids[at - back : at]:
            session.eval(token)
        np.testing.assert_array_equal(session.logits, alone[at], err_msg=f"{back} back")


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


def test_out_of_reach_changes_nothing(engine: Engine, ids: list[int], alone: dict) -> None:
    session = decoded(engine, ids[:200])
    streams = session.streams.copy()
    for pos in (-1, 0, 1, 100, 140, 201, 1000):
        with pytest.raises(SessionError, match="too far back"):
            session.rewind(pos)
        assert session.tokens == ids[:200]
        np.testing.assert_array_equal(session.logits, alone[200])
        np.testing.assert_array_equal(session.streams, streams)
    np.testing.assert_array_equal(session.eval(ids[200]), alone[201])


def test_to_where_it_is_already(engine: Engine, ids: list[int], alone: dict) -> None:
    session = decoded(engine, ids[:5])
    session.rewind(5)
    np.testing.assert_array_equal(session.logits, alone[5])
    empty = engine.session(CTX)
    with pytest.raises(SessionError):
        empty.rewind(0)


def test_after_going_back_a_prompt_is_continued_from_there(engine: Engine, ids: list[int]) -> None:
    session = decoded(engine, ids[:50])
    session.rewind(45)
    other = [*ids[:45], *reversed(ids[50:80])]
    assert session.common_prefix(other) == 45
    session.sync(other)
    wanted = decoded(engine, ids[:45])
    wanted.sync(other)
    np.testing.assert_array_equal(session.logits, wanted.logits)


@pytest.mark.parametrize("back", [1, 2, 7, 30])
def test_back_into_a_chunk(engine: Engine, ids: list[int], back: int) -> None:
    """Of a short chunk all streams are kept, so that logits cost no token; of a long one those of the last token."""
    short, wanted = engine.session(CTX), engine.session(CTX)
    short.extend(ids[:100])
    out = short.extend(ids[100:132])
    short.rewind(132 - back)
    np.testing.assert_allclose(short.logits, out[31 - back], atol=2e-4)
    wanted.extend(ids[:100])
    wanted.extend(ids[100:132])
    wanted.rewind(132 - back)
    np.testing.assert_array_equal(short.eval(7), wanted.eval(7))


def test_back_into_a_long_prompt_costs_one_token(engine: Engine, ids: list[int]) -> None:
    session, wanted = engine.session(CTX), engine.session(CTX)
    session.sync(ids[:100])
    assert session._streams.shape[0] == 1
    assert session._streams.base is None or session._streams.base.nbytes < 2 * session._streams.nbytes
    session.rewind(99)
    wanted.sync(ids[:98])
    np.testing.assert_array_equal(session.logits, wanted.eval(ids[98]))
    np.testing.assert_array_equal(session.eval(3), wanted.eval(3))


def test_no_further_than_a_restored_frontier(engine: Engine, ids: list[int], alone: dict) -> None:
    first = decoded(engine, ids[:130])
    stream = io.BytesIO()
    first.save(stream)
    stream.seek(0)
    loaded, restored = engine.session(CTX), engine.session(CTX)
    loaded.load(stream)
    restored.restore(first.snapshot())
    for session in (loaded, restored):
        with pytest.raises(SessionError, match="too far back"):
            session.rewind(129)
        for token in ids[130:140]:
            session.eval(token)
        for pos in (130, 126):
            with pytest.raises(SessionError, match="too far back"):
                session.rewind(pos)
        session.rewind(131)
        np.testing.assert_array_equal(session.logits, alone[131])
        for token in ids[131:140]:
            session.eval(token)
        np.testing.assert_array_equal(session.logits, alone[140])


def test_snapshots_outlive_going_back(engine: Engine, ids: list[int], alone: dict) -> None:
    """What was computed after the place gone back to belongs to the snapshot, too: it must not be overwritten."""
    session = decoded(engine, ids[:150])
    late = session.snapshot()
    session.rewind(125)
    for token in reversed(ids[150:180]):
        session.eval(token)
    early = session.snapshot()
    session.restore(late)
    for token in ids[150:160]:
        np.testing.assert_array_equal(session.eval(token), alone[session.pos])
    session.restore(early)
    wanted = decoded(engine, [*ids[:125], *reversed(ids[150:180])])
    np.testing.assert_array_equal(session.eval(9), wanted.eval(9))


def test_snapshots_outlive_a_draft_taken_back(engine: Engine, ids: list[int], alone: dict) -> None:
    """The same where the very next token closes windows of both ratios, with nothing computed in between."""
    session = decoded(engine, ids[:126])
    session.extend(ids[126:133])
    late = session.snapshot()
    session.rewind(127)
    session.eval(ids[127] ^ 1)
    session.restore(late)
    for token in ids[133:140]:
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


@pytest.mark.parametrize("engine", sampled(["exact", "qat", "ds4"], ["ds4"]), indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_drafts_are_accepted_or_taken_back(engine: Engine, ids: list[int], alone: dict, seed: int) -> None:
    """As speculative decoding does: up to 7 tokens at once, of which the first few are right."""
    rng, session = np.random.default_rng(seed), engine.session(CTX)
    session.eval(ids[0])
    while session.pos < 200:
        at, count = session.pos, int(rng.integers(1, 8))
        right = int(rng.integers(0, count + 1))
        streams: list[np.ndarray] = []
        draft = [*ids[at : at + right], *(token ^ 1 for token in ids[at + right : at + count])]
        out = session.extend(draft, streams=streams)
        for i in range(right):
            np.testing.assert_array_equal(out[i], alone[at + i + 1])
        assert streams[0].shape == (count, engine.shape.hc, engine.shape.dim)
        session.rewind(at + right)
        assert session.tokens == ids[: at + right]
        np.testing.assert_array_equal(session.logits, alone[at + right])
        if rng.integers(2):
            np.testing.assert_array_equal(session.eval(ids[session.pos]), alone[session.pos])


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


def test_one_by_one_is_what_eval_gives(engine: Engine, ids: list[int], alone: dict) -> None:
    session, streams = engine.session(CTX), []
    out = session.extend(ids[:12], one_by_one=True, streams=streams)
    np.testing.assert_array_equal(out, [alone[at] for at in range(1, 13)])
    assert [part.shape[0] for part in streams] == [1] * 12


def test_returned_logits_belong_to_the_caller(engine: Engine, ids: list[int], alone: dict) -> None:
    session = engine.session(CTX)
    session.extend(ids[:5])[:] = 0
    np.testing.assert_array_equal(session.logits, alone[5])
    session.extend(ids[5:8], chunk=1)[:] = 0
    np.testing.assert_array_equal(session.snapshot().logits, alone[8])


def test_a_failure_in_a_recorded_token_invalidates(
    engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = decoded(engine, ids[:5])
    monkeypatch.setattr(type(session._decoder.last), "replay", lambda recording: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.eval(ids[5])
    assert not session.valid and session.tokens == []
    with pytest.raises(SessionError, match="no tokens"):
        _ = session.logits
    monkeypatch.undo()
    session.sync(ids[:5])
    assert session.tokens == ids[:5]


def test_extend_keeps_finished_chunks_when_cancelled(engine: Engine, ids: list[int]) -> None:
    session, wanted, asked = engine.session(CTX), engine.session(CTX), []
    session.extend(ids[:10])
    out = wanted.extend(ids[:10])
    out = wanted.extend(ids[10:64])
    with pytest.raises(Cancelled):
        session.extend(ids[10:200], chunk=64, cancel=lambda: asked.append(1) or len(asked) > engine.shape.n_layers + 1)
    assert session.tokens == ids[:64]
    np.testing.assert_array_equal(session.logits, out[-1])
    np.testing.assert_array_equal(session.eval(5), wanted.eval(5))


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


def test_steps_back_add_up(engine: Engine, ids: list[int], alone: dict) -> None:
    """What was overwritten on the way forward stays lost, also after going back and on again: 30 back, one on and 20
    back is as far as 49."""
    session = decoded(engine, ids[:150])
    session.rewind(120)
    session.eval(ids[120])
    with pytest.raises(SessionError, match="too far back"):
        session.rewind(101)
    session.rewind(119)
    np.testing.assert_array_equal(session.logits, alone[119])
    np.testing.assert_array_equal(session.eval(ids[119]), alone[120])


def test_logits_are_read_as_sampling_reads_them(engine: Engine, ids: list[int]) -> None:
    session = decoded(engine, ids[:9])
    best = session.argmax()
    assert best == sampling.argmax(session.logits) != session.argmax(exclude=best)
    assert session.top_logprobs(3) == sampling.top_logprobs(session.logits, 3)
    assert session.top_logprobs(3)[0][2] == pytest.approx(session.token_logprob(best), rel=1e-6)
    assert session.token_logprob(7) == sampling.token_logprob(session.logits, 7)
