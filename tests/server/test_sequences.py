"""Cached sequences by themselves: which one a prompt continues from, which one leaves memory first, what they weigh."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ds4ref.server.queue import FairQueue
from ds4ref.server.sequences import LEAST, Sequences
from ds4ref.session.boundaries import Policy
from ds4ref.text.rendered import Rendered


@dataclass(frozen=True)
class Snapshot:
    tokens: tuple[int, ...]
    own_bytes: int = 1000
    shared: tuple[int, int] = (0, 0)
    model: object = None


class Session:
    """Tokens whose snapshots weigh what they are told to: ``own`` bytes, and ``shared`` rows of a store."""

    valid, ctx = True, 4096

    def __init__(self, tokens=(), own=1000, shared=(0, 0)):
        self.tokens, self.own, self.shared = list(tokens), own, shared

    @property
    def pos(self):
        return len(self.tokens)

    def snapshot(self):
        return Snapshot(tuple(self.tokens), self.own, self.shared)

    def restore(self, snapshot):
        self.tokens = list(snapshot.tokens)

    def invalidate(self):
        self.tokens = []


def tokens(first: int, n: int = LEAST) -> list[int]:
    return [first, *[5] * (n - 1)]


@pytest.fixture
def sequences(nano_engine):
    return Sequences(nano_engine.tokenizer, budget=3000)


def firsts(sequences):
    return [sequence.tokens[0] for sequence in sequences.kept()]


def test_the_least_recently_used_leaves_first(sequences):
    """Wrong order: the conversation that a user is in loses its cache, and every turn of it is evaluated anew."""
    for first in (11, 12, 13):
        sequences.keep(Session(tokens(first)), ())
    assert firsts(sequences) == [11, 12, 13] and sequences.nbytes == 3000  # exactly the budget: all stay
    start = sequences.begin(session := Session(), Rendered(), [*tokens(11), 7])
    assert (start.cached, start.tokens, start.source) == (LEAST, [*tokens(11), 7], "memory-token")
    assert session.tokens == tokens(11)
    assert firsts(sequences) == [12, 13, 11]
    sequences.keep(Session(tokens(14)), ())
    assert firsts(sequences) == [13, 11, 14]


def test_rows_that_several_share_weigh_once(sequences):
    """As much as the longest of a store's, plus what each has alone; two stores are two."""
    sequences.keep(Session(tokens(11), own=10, shared=(1, 700)), ())
    sequences.keep(Session(tokens(12), own=20, shared=(1, 500)), ())
    assert sequences.nbytes == 30 + 700
    sequences.keep(Session(tokens(13), own=40, shared=(2, 100)), ())
    assert sequences.nbytes == 70 + 800


def test_the_same_tokens_again_are_one_sequence_with_all_its_texts(sequences):
    sequences.keep(Session(tokens(11)), ["one"])
    sequences.keep(Session(tokens(11)), ["two"])
    (sequence,) = sequences.kept()
    own = sequences.tokenizer.decode(tokens(11))
    assert sequence.texts == (b"two", own, b"one")


def test_of_two_that_a_prompt_begins_with_the_longer_counts(sequences):
    for n in (24, 16, 20):
        sequences.keep(Session(tokens(11, n)), ())
    assert sequences.begin(Session(), Rendered(), [*tokens(11, 22), 7]).cached == 20
    assert sequences.begin(Session(), Rendered(), tokens(11, 24)).cached == 24  # nothing is left to evaluate
    assert sequences.begin(session := Session([1]), Rendered(), tokens(12)).source == "none" and not session.tokens


class Disk:
    """Checkpoints that are only counted."""

    def __init__(self, least):
        self.policy, self.saved = Policy(min_tokens=least, cold_max=0, interval=0), []

    def load(self, *args):
        return None

    def save(self, session, texts, reason):
        self.saved.append((reason, session.tokens[0], session.pos))
        return True


def test_at_the_end_only_what_no_longer_one_continues_is_written(sequences, monkeypatch):
    """Every turn leaves a snapshot: without this rule, shutting down writes each conversation once per turn."""
    import ds4ref.server.sequences as module

    monkeypatch.setattr(module, "Session", lambda model, ctx: Session())
    sequences.disk, sequences.budget = Disk(18), 10_000
    for first, n in ((11, 20), (11, 30), (12, 18), (13, 17)):
        sequences.keep(Session(tokens(first, n)), ())
    sequences.write_out()
    assert sequences.disk.saved == [("shutdown", 11, 30), ("shutdown", 12, 18)]


# --- the queue


def test_everybody_learns_his_place_whenever_it_changes():
    """A stream that shows "3 ahead" for ever after others have left is taken for a server that hangs."""
    told: list[tuple[str, int]] = []
    queue: FairQueue[str] = FairQueue(9, lambda entry, ahead: told.append((entry, ahead)))

    def after(what, *args):
        told.clear()
        result = what(*args)
        return result, list(told)

    assert after(queue.put, "a", "a1") == (None, [("a1", 0)])
    assert after(queue.put, "a", "a2") == (None, [("a1", 0), ("a2", 1)])
    assert after(queue.put, "b", "b1") == (None, [("a1", 0), ("b1", 1), ("a2", 2)])
    assert after(queue.put, "b", "b2") == (None, [("a1", 0), ("b1", 1), ("a2", 2), ("b2", 3)])
    assert after(queue.drop, "b1") == (True, [("a1", 0), ("b2", 1), ("a2", 2)])
    assert after(queue.drop, "b2") == (True, [("a1", 0), ("a2", 1)])  # the last one of its client
    assert after(queue.drop, "b2") == (False, [])
    assert after(queue.put, "c", "c1") == (None, [("a1", 0), ("c1", 1), ("a2", 2)])
    assert after(queue.take, 0) == ("a1", [("c1", 0), ("a2", 1)])
    assert after(queue.put, "a", "a3") == (None, [("c1", 0), ("a2", 1), ("a3", 2)])
    assert [queue.take(0), queue.take(0), queue.take(0), queue.take(0)] == ["c1", "a2", "a3", None]


def test_a_closed_queue_gives_back_what_waits_in_its_order():
    queue: FairQueue[str] = FairQueue(9)
    for entry in ("a1", "a2", "b1"):
        queue.put(entry[0], entry)
    assert queue.close() == ["a1", "b1", "a2"] and len(queue) == 0 and queue.take() is None
