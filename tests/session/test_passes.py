"""Passes of several rows: drafted tokens, and the next tokens of several sessions, each row as if it were alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ds4ref.drafts.session import DraftingSession
from ds4ref.engine import Engine
from ds4ref.session.session import Session
from ds4ref.session.together import Together
from tests.marking import sampled

CTX, LENGTH = 400, 150


@pytest.fixture(scope="module", params=sampled(["exact", "qat", "ds4"], ["ds4"]))
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    """Of lengths at which windows of 4 and of 128 close at different times."""
    random = np.random.default_rng(8)
    return [random.integers(0, engine.shape.vocab, size).tolist() for size in (101, 118, 7, 120)]


@pytest.fixture(scope="module")
def alone(engine: Engine, prompts: list[list[int]]) -> list[list[tuple[int, np.ndarray]]]:
    """The greedy continuation of each prompt: best token and logits at every position."""
    found = []
    for prompt in prompts:
        session = started(engine, prompt)
        found.append([step(session) for _ in range(LENGTH)])
    return found


def started(engine: Engine, prompt: Sequence[int], speculation: Any = None, ctx: int = CTX) -> Session:
    session = engine.session(ctx) if speculation is None else DraftingSession(engine.model, ctx, speculation)
    session.sync(prompt)
    if speculation is not None:
        speculation.cut.clear()
    return session


def step(session: Session) -> tuple[int, np.ndarray]:
    best, logits = session.argmax(), session.logits.copy()
    session.append(best)
    return best, logits


class Told:
    """A speculation that drafts what it was told to, and notes what it hears; a draft is false where ``false``."""

    window = 1

    def __init__(self, prompt: Sequence[int], best: Sequence[int], depth: int, false: Sequence[int] = ()):
        self.all, self.depth, self.false = [*prompt, *best], depth, set(false)
        self.offered: list[int] = []
        self.rooms: list[int] = []
        self.streams: list[int] = []
        self.settled_: list[int] = []
        self.passes: list[int] = []
        self.cut: list[int] = []

    def attach(self, cache: Any) -> None:
        pass

    def propose(self, tokens: Sequence[int], streams: Any, room: int) -> list[int]:
        self.rooms.append(room)
        self.streams.append(0 if streams is None else len(streams))
        places = range(len(tokens), min(len(tokens) + min(room, self.depth), len(self.all)))
        drafts = [self.all[at] if at not in self.false else self.all[at] ^ 1 for at in places]
        self.offered.append(len(drafts))
        return drafts

    def passed(self, rows: int, seconds: float) -> None:
        assert seconds > 0
        self.passes.append(rows)

    def settled(self, accepted: int) -> None:
        self.settled_.append(accepted)

    def truncate(self, pos: int) -> None:
        self.cut.append(pos)


def test_right_drafts_cost_no_pass(engine: Engine, prompts: list, alone: list) -> None:
    """Three in a pass with the token before them; the next pass begins after them."""
    told = Told(prompts[0], [token for token, _ in alone[0]], 3, [108])
    session = started(engine, prompts[0], speculation=told)
    runs = counted(session)
    for token, _ in alone[0][:20]:
        session.append(token)
    # 101 + 102 103 104, 105 + 106 107 (108 is wrong), 108 + 109 110 111, 112 ..., 116 ..., 120 ...
    assert runs == [4, 4, 4, 4, 4, 4]
    assert told.settled_ == [3, 2, 3, 3, 3], "the last pass is not over"
    assert told.streams[0] == 1 and told.streams[1:] == [4, 3, 4, 4, 4], "of the tokens that were right"
    session.snapshot()
    assert told.settled_[-1] == 0


def counted(session: Session) -> list[int]:
    """Note the number of rows of each pass of a session."""
    decoder, runs = session._decoder, []
    assert decoder is not None
    run = decoder.run

    def noted(*tokens: Sequence[int]) -> Any:
        runs.append(len(tokens[0]))
        return run(*tokens)

    decoder.run = noted  # type: ignore[method-assign]
    return runs


def test_drafts_stay_within_the_context(engine: Engine, prompts: list, alone: list) -> None:
    best = [token for token, _ in alone[2]]
    told = Told(prompts[2], best, 7)
    session = started(engine, prompts[2], told, ctx=len(prompts[2]) + 4)
    for token, logits in alone[2][:4]:
        np.testing.assert_array_equal(session.logits, logits)
        session.append(token)
    assert session.pos == session.ctx and told.rooms == [3] and told.offered == [3]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(session.logits, alone[2][4][1])


def test_a_drafter_hears_what_becomes_of_the_sequence(engine: Engine, prompts: list, alone: list) -> None:
    best = [token for token, _ in alone[0]]
    told = Told(prompts[0], best, 2)
    session = started(engine, prompts[0], speculation=told)
    for token in best[:6]:
        session.append(token)
    kept = session.snapshot()
    session.append(best[6])
    session.append(best[7])
    session.restore(kept)
    session.rewind(session.pos)
    session.append(best[6])
    session.sync(prompts[1])
    assert told.cut == [len(prompts[0]) + 6, 0]
    file = io.BytesIO()
    session.save(file)
    assert len(file.getvalue()) == engine.shape.payload_bytes(session.pos), "nothing of a drafter is saved"
    file.seek(0)
    session.load(file)
    assert told.cut[2:] == [0], "what it had of the sequence is forgotten, equal or not"


def test_a_failing_drafter_harms_nothing(engine: Engine, prompts: list, alone: list) -> None:
    class Broken(Told):
        def propose(self, tokens: Sequence[int], streams: Any, room: int) -> list[int]:
            raise RuntimeError("broken")

    session = started(engine, prompts[0], speculation=Broken(prompts[0], [], 3))
    with pytest.raises(RuntimeError, match="broken"):
        session.append(alone[0][0][0])
    session._drafts = lambda token, most: []  # type: ignore[method-assign]
    for token, logits in alone[0][:9]:
        np.testing.assert_array_equal(session.logits, logits)
        session.append(token)


# --- several sessions


def test_who_is_not_ready_is_left_out(engine: Engine, prompts: list, alone: list) -> None:
    """Full, empty, asked for nonsense, with rows ahead: these compute, or refuse, by themselves."""
    together = engine.together()
    a, b, twice, empty = (started(engine, p) for p in (*prompts[:2], prompts[2], prompts[3]))
    empty.invalidate()
    full = engine.session(len(prompts[3]))
    full.extend(prompts[3][:-1])
    full.append(prompts[3][-1])
    twice.take(twice._decoder.run([3])[0], [3])  # type: ignore[union-attr]
    together.look_ahead([(a, 5), (full, 5), (empty, 5), (twice, 5), (b, engine.shape.vocab)])
    assert not a._ahead, "nobody is left to share a pass with"
    together.look_ahead([(a, 5), (full, 5), (b, 6), (twice, 5)])
    assert (a._ahead, b._ahead, full._ahead, twice._ahead) == ([5], [6], [], [3])


def test_drafts_wait_while_sessions_share_passes(engine: Engine, prompts: list, alone: list) -> None:
    """And go on afterwards, with the streams of the shared pass."""
    best = [token for token, _ in alone[0]]
    told = Told(prompts[0], best, 3)
    one, other = started(engine, prompts[0], speculation=told), started(engine, prompts[1])
    together = engine.together()
    for at in range(9):
        pairs = [(session, session.argmax()) for session in (one, other)]
        if at < 5:
            together.look_ahead(pairs)
        for session, token in pairs:
            session.append(token)
        np.testing.assert_array_equal(one.logits, alone[0][at + 1][1])
    assert (told.offered, told.streams, told.settled_) == ([3], [1], [])
    one.append(best[9])
    assert (told.offered, told.streams, told.settled_) == ([3, 3], [1, 4], [3])


def test_a_recording_for_sessions_that_share_rows_serves_no_others(engine: Engine, prompts: list) -> None:
    """Two sessions that go on from one snapshot have one array of rows until the next row begins."""

    def opened(prompt: Sequence[int]) -> Session:
        session = engine.session(CTX + 8)  # of a size of its own: no other test has recorded a pass for it
        session.sync(prompt)
        return session

    ids = prompts[1], prompts[3][:118]
    one, twin = opened(ids[0]), engine.session(CTX + 8)
    twin.restore(one.snapshot())
    together = Together(engine.model)
    together.look_ahead([(one, 5), (twin, 5)])
    pair, alone = [opened(prompt) for prompt in ids], [opened(prompt) for prompt in ids]
    for token in range(20, 30):
        together.look_ahead([(session, token) for session in pair])
        for session, other in zip(pair, alone, strict=True):
            session.append(token)
            other.append(token)
            assert np.array_equal(session.logits, other.logits)
