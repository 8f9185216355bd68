"""One state machine for sequences of tokens: whatever is done, each is to the bit one that decoded its tokens alone.

Several sessions of one model go on, go back, share snapshots, are saved and loaded, draft, and share passes. A session
that decodes one token at a time and never goes back is what they are compared with.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ds4ref.drafts.session import DraftingSession
from ds4ref.engine import Engine
from ds4ref.errors import Cancelled, ContextError, SessionError
from ds4ref.session.session import Session, Snapshot
from tests import v41

CTX, LENGTH = 200, 190
STARTS = (1, 101, 125)
"""Lengths at which windows of 4 and of 128 tokens close at different times later."""
SAFE = 24
"""Tokens that a session can always go back, as far as it has computed them itself."""


class Told:
    """A speculation that drafts what follows in ``text``, some of it wrong."""

    window = 1

    def __init__(self, text: Sequence[int], depth: int, wrong: int):
        self.text, self.depth, self.wrong = text, depth, wrong

    def attach(self, cache: Any) -> None:
        pass

    def propose(self, tokens: Sequence[int], streams: Any, room: int) -> list[int]:
        assert streams is None or len(streams) <= len(tokens)
        first = len(tokens)
        places = range(first, min(first + min(room, self.depth), len(self.text)))
        return [self.text[at] ^ (at % self.wrong == 0) for at in places]

    def passed(self, rows: int, seconds: float) -> None:
        assert 1 <= rows <= 8 and seconds > 0

    def settled(self, accepted: int) -> None:
        assert 0 <= accepted <= 7  # perhaps of drafts by another one, which this one replaced

    def truncate(self, pos: int) -> None:
        assert pos >= 0


class Sequences(RuleBasedStateMachine):
    """Three sessions, their tokens, and how far back each can certainly go."""

    engine: Engine
    text: list[int]
    alone: dict[int, np.ndarray]
    begun: dict[int, Snapshot]

    snapshots = Bundle("snapshots")
    which = st.integers(0, 2)

    @initialize(target=snapshots, starts=st.tuples(*[st.sampled_from(STARTS)] * 3))
    def begin(self, starts: tuple[int, ...]) -> Any:
        self.together = self.engine.together()
        nothing: Any = Told(self.text, 0, 1)
        self.sessions = [DraftingSession(self.engine.model, CTX, nothing) for _ in starts]
        self.tokens = [self.text[:start] for start in starts]
        self.floor = list(starts)
        for session, start in zip(self.sessions, starts, strict=True):
            session.restore(self.begun[start])
        return multiple(*((self.begun[start], self.text[:start]) for start in starts))

    def following(self, which: int, count: int, right: int) -> list[int]:
        """Tokens to go on with: ``right`` of the text, then others."""
        at = len(self.tokens[which])
        count = min(count, LENGTH - at)
        return [self.text[at + n] ^ (n >= right) for n in range(count)]

    def compare(self, session: Session, tokens: Sequence[int]) -> None:
        if list(tokens) == self.text[: len(tokens)]:
            np.testing.assert_array_equal(session.logits, self.alone[len(tokens)])
        assert session.argmax() == int(session.logits.argmax())

    @rule(
        which=which, count=st.integers(1, 7), right=st.integers(0, 7), how=st.sampled_from(["eval", "extend", "sync"])
    )
    def go_on(self, which: int, count: int, right: int, how: str) -> None:
        session, more = self.sessions[which], self.following(which, count, right)
        if how == "eval":
            for token in more:
                session.append(token)
                self.tokens[which].append(token)
                self.compare(session, self.tokens[which])
            return
        self.tokens[which] += more
        if how == "sync":
            session.sync(self.tokens[which])
        else:
            session.extend(more)

    @rule(which=which, count=st.integers(1, 7))
    def cancel(self, which: int, count: int) -> None:
        with pytest.raises(Cancelled):
            self.sessions[which].sync(self.tokens[which] + self.following(which, count, 7) + [0], cancel=lambda: True)
        self.floor[which] = len(self.tokens[which])  # it may not go back further than where it was stopped

    @rule(which=which, back=st.sampled_from([1, 1, 2, 3, 5, 8, 13, SAFE, 40]))
    def go_back(self, which: int, back: int) -> None:
        session, at = self.sessions[which], len(self.tokens[which])
        try:
            session.rewind(at - back)
        except SessionError:
            assert at - back <= self.floor[which] or back > SAFE
            return
        assert at - back > 0
        del self.tokens[which][at - back :]
        self.floor[which] = max(self.floor[which], at - 2 - SAFE)  # what was overwritten on the way stays lost

    @rule(target=snapshots, which=which)
    def keep(self, which: int) -> tuple[Snapshot, list[int]]:
        return self.sessions[which].snapshot(), list(self.tokens[which])

    @rule(which=which, kept=snapshots)
    def restore(self, which: int, kept: tuple[Snapshot, list[int]]) -> None:
        self.sessions[which].restore(kept[0])
        self.tokens[which], self.floor[which] = list(kept[1]), len(kept[1])

    @rule(which=which, to=which)
    def save_and_load(self, which: int, to: int) -> None:
        file = io.BytesIO()
        self.sessions[which].save(file)
        assert len(file.getvalue()) == self.sessions[which].payload_bytes()
        file.seek(0)
        self.sessions[to].load(file)
        self.tokens[to], self.floor[to] = list(self.tokens[which]), len(self.tokens[which])

    @rule(which=which, depth=st.integers(0, 7), wrong=st.sampled_from([1, 3, 7, 1000]))
    def draft(self, which: int, depth: int, wrong: int) -> None:
        self.sessions[which].speculation = Told(self.text, depth, wrong)  # type: ignore[assignment]

    @rule(right=st.tuples(st.booleans(), st.booleans(), st.booleans()), taken=st.tuples(*[st.booleans()] * 3))
    def share_a_pass(self, right: tuple[bool, ...], taken: tuple[bool, ...]) -> None:
        """A session may take the token that was evaluated ahead, or another one."""
        picks = [self.following(which, 1, int(right[which])) for which in range(3)]
        self.together.look_ahead([(s, pick[0]) for s, pick in zip(self.sessions, picks, strict=True) if pick])
        self.sessions_are_as_if_alone()
        for which, pick in enumerate(picks):
            if pick:
                token = pick[0] if taken[which] else pick[0] ^ 1
                self.sessions[which].append(token)
                self.tokens[which].append(token)

    @rule(which=which)
    def refuse(self, which: int) -> None:
        session = self.sessions[which]
        with pytest.raises(ContextError):
            session.extend([0] * (CTX - session.pos + 1))
        with pytest.raises(SessionError):
            session.rewind(session.pos + 1)
        session.rewind(session.pos)
        assert session.cache_bytes > 0

    @invariant()
    def sessions_are_as_if_alone(self) -> None:
        for session, tokens in zip(getattr(self, "sessions", ()), getattr(self, "tokens", ()), strict=True):
            assert session.tokens == tokens and session.pos == len(tokens)
            self.compare(session, tokens)

    def teardown(self) -> None:
        for session, tokens in zip(getattr(self, "sessions", ()), getattr(self, "tokens", ()), strict=True):
            plain = self.engine.session(CTX)
            start = max(start for start in STARTS if tokens[:start] == self.text[:start])
            plain.restore(self.begun[start])
            for token in tokens[start:]:
                plain.append(token)
            np.testing.assert_array_equal(session.logits, plain.logits)
            for token in (3, 4):
                np.testing.assert_array_equal(session.eval(token), plain.eval(token))


@pytest.mark.parametrize("numerics", ["exact", "ds4"])
def test_whatever_is_done_a_session_is_what_its_tokens_make(nano_path: str, numerics: str) -> None:
    with Engine.open(nano_path, numerics=numerics) as engine:
        hold(engine)


@pytest.mark.parametrize("numerics", ["exact", "qat"])
def test_the_same_of_a_model_that_looks_up_n_grams(tmp_path: Path, numerics: str) -> None:
    """Its rows follow from tokens before the chunk, in sequences that share their cache up to some token."""
    with Engine.open(v41.model(tmp_path, "engram"), numerics=numerics) as engine:
        hold(engine, 20)


def machine(engine: Engine) -> Any:
    """The state machine of a model's sessions."""
    text = np.random.default_rng(8).integers(0, engine.shape.vocab, CTX).tolist()
    session, alone, begun = engine.session(CTX), {}, {}
    for at, token in enumerate(text[:LENGTH], 1):
        alone[at] = session.eval(token).copy()
        if at in STARTS:
            begun[at] = session.snapshot()
    return type("Machine", (Sequences,), {"engine": engine, "text": text, "alone": alone, "begun": begun})


def hold(engine: Engine, examples: int = 40) -> None:
    """Run the state machine."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    how = settings(max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(machine(engine), settings=how)
