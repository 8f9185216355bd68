"""Session: sync, snapshot, payload, cancellation, bad input (docs/explanation/model.md 12)."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import Cancelled, ContextError, PayloadError, SessionError, TokenError
from ds4ref.kernels.cpu import reuse
from ds4ref.nano import random_path
from ds4ref.session.session import STREAMS_KEPT

CTX = 600


@pytest.fixture(scope="module", params=["exact", "ds4"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine.open(random_path(), numerics=request.param)


@pytest.fixture
def ids(engine: Engine) -> list[int]:
    return [int(t) for t in np.random.default_rng(3).integers(0, engine.shape.vocab, 300)]


def test_sync_extends_reuses_and_rebuilds(engine: Engine, ids: list[int]) -> None:
    session, seen = engine.session(CTX), []
    session.sync(ids[:100], progress=lambda *at: seen.append(at), chunk=64)
    assert seen == [(0, 100), (64, 100), (100, 100)]
    first = session.logits.copy()
    seen.clear()
    session.sync(ids[:100], progress=lambda *at: seen.append(at))
    assert not seen
    session.sync(ids, progress=lambda *at: seen.append(at), chunk=128)
    assert seen == [(100, 300), (128, 300), (256, 300), (300, 300)]
    session.sync(ids[:100])
    np.testing.assert_array_equal(session.logits, first)
    assert session.common_prefix([*ids[:50], ids[50] ^ 1]) == 50
    session.invalidate()
    assert session.common_prefix(ids) == 0
    assert not session.valid


def test_payload_on_disk(engine: Engine, ids: list[int], tmp_path) -> None:
    session = engine.session(CTX)
    session.sync(ids[:70])
    path = tmp_path / "session.dsv4"
    session.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["session.dsv4"]
    other = engine.session(CTX)
    other.load(path)
    np.testing.assert_array_equal(other.logits, session.logits)
    with pytest.raises(PayloadError, match="No such file"):
        other.load(tmp_path / "absent")


def test_a_session_that_its_caller_refuses_is_not_loaded(engine: Engine, ids: list[int]) -> None:
    session, twin, told = engine.session(CTX), engine.session(CTX), []
    for one in (session, twin):
        one.sync(ids[100:110])

    def refuse(tokens: list[int]) -> None:
        told.append(tokens)
        raise KeyError("not this one")

    with pytest.raises(KeyError, match="not this one"):
        session.load(io.BytesIO(_payload(engine, ids)), refuse)
    assert told == [ids[:70]] and session.tokens == ids[100:110]
    np.testing.assert_array_equal(session.logits, twin.logits)
    np.testing.assert_array_equal(session.eval(ids[0]), twin.eval(ids[0]))


def _payload(engine: Engine, ids: list[int], n: int = 70, ctx: int = CTX) -> bytearray:
    session = engine.session(ctx)
    session.sync(ids[:n])
    stream = io.BytesIO()
    session.save(stream)
    return bytearray(stream.getvalue())


def test_a_prompt_is_cut_as_the_backend_says(engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model.ops, "prefill_chunk", 3, raising=False)
    seen: list[int] = []
    session = engine.session(64)
    session.sync(ids[:8], progress=lambda done, total: seen.append(done))
    assert seen == [0, 3, 6, 8]
    assert engine.costs().prefill(0, 8) == engine.costs().prefill(0, 8, 3)


def test_logits_come_a_few_rows_at_a_time(engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many tokens as asked for, fewer where their bytes exceed the limit, and the same values."""
    whole = engine.session(CTX).extend(ids[:60], chunk=40)
    for limit, rows, lengths in ((1 << 30, 25, [25, 15, 20]), (4 * 16 * engine.shape.vocab, 25, [16, 16, 8, 16, 4])):
        monkeypatch.setattr("ds4ref.session.session.LOGIT_BYTES", limit)
        session = engine.session(CTX)
        starts, parts = zip(*session.passes(ids[:60], chunk=40, rows=rows), strict=True)
        assert [len(part) for part in parts] == lengths and starts == tuple(np.cumsum([0, *lengths[:-1]]))
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-3)
        np.testing.assert_array_equal(session.logits, parts[-1][-1])


def test_cancel_keeps_the_last_finished_chunk(engine: Engine, ids: list[int]) -> None:
    session = engine.session(CTX)
    layers = engine.shape.n_layers
    asked = 0

    def cancel() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2 * layers + 3

    with pytest.raises(Cancelled):
        session.sync(ids, cancel=cancel, chunk=64)
    assert session.tokens == ids[:128]
    session.sync(ids, chunk=64)
    other = engine.session(CTX)
    other.sync(ids, chunk=64)
    np.testing.assert_array_equal(session.logits, other.logits)


def test_bad_input_changes_nothing(engine: Engine, ids: list[int]) -> None:
    session = engine.session(20)
    with pytest.raises(SessionError, match="no tokens"):
        _ = session.logits
    with pytest.raises(SessionError, match="empty"):
        session.sync([])
    with pytest.raises(ContextError):
        session.sync(ids[:20])
    session.sync(ids[:19])
    for bad in (-1, engine.shape.vocab, 1 << 40):
        with pytest.raises(TokenError, match="at position 19"):
            session.eval(bad)
    with pytest.raises(TokenError, match="integers"):
        session.sync([1.5])  # type: ignore[list-item]
    session.eval(ids[19])
    with pytest.raises(ContextError):
        session.eval(1)
    assert session.tokens == ids[:20]
    with pytest.raises(ContextError):
        engine.session(0)


def test_a_failure_is_told_also_where_no_new_cache_can_be_had(
    engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that failed gives no memory either: what it says then is not what went wrong. Later uses begin anew."""
    session, other = engine.session(CTX), engine.session(CTX)
    session.sync(ids[:10])
    kept, wanted = session.snapshot(), session.eval(ids[10]).copy()

    def fails(*ignored: object) -> None:
        raise MemoryError("no cache")

    for way in ("append", "sync"):
        session.sync(ids[:10])
        with monkeypatch.context() as patch:
            patch.setattr(type(session), "_new_cache", fails)
            patch.setattr(session._decoder, "run", fails_first)
            patch.setattr(engine.model, "forward", fails_first)
            with pytest.raises(RuntimeError, match="the device is lost"):
                session.append(ids[10]) if way == "append" else session.sync(ids[:12])
            assert not session.valid and session.tokens == []
            with pytest.raises(MemoryError):
                session.sync(ids[:10])
            with pytest.raises(MemoryError):
                session.restore(kept)
        session.sync(ids[:10])
        assert np.array_equal(session.eval(ids[10]), wanted)
    other.restore(kept)
    assert np.array_equal(other.eval(ids[10]), wanted)


def fails_first(*ignored: object) -> None:
    raise RuntimeError("the device is lost")


def test_what_is_kept_of_a_pass_does_not_keep_its_memory(
    engine: Engine, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of a chunk are kept for ``rewind``; an array of theirs would keep all that the pass has used."""
    monkeypatch.setattr(reuse, "LEAST", 1)
    memory, session = reuse.Memory(), engine.session(CTX)
    monkeypatch.setattr(session.model.ops, "_results", memory)
    for count in (1, 2, STREAMS_KEPT, STREAMS_KEPT + 1):
        session.extend(ids[:count], chunk=count)
        assert session.streams.shape[0] == 1
        assert (memory.lent, memory.kept) == (0, 0)
        session.sync([*session.tokens, *ids[:count]], chunk=count)
        assert (memory.lent, memory.kept) == (0, 0)
