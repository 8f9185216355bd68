"""Lookup in the conversation, against a search that compares everything with everything."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.drafts import lookup
from ds4ref.drafts.lookup import COMPARED, GRADES, RUN, Lookup


def slow(tokens: list[int], limit: int) -> tuple[list[int], int]:
    """What the longest match of all says, the newest on ties, and how long it is."""
    best, at = 0, 0
    for place in range(RUN, len(tokens)):
        length = 0
        while length < min(place, COMPARED) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= RUN and length >= best:
            best, at = length, place
    text = list(tokens)
    for step in range(limit if best else 0):
        text.append(text[at + step])
    return text[len(tokens) :], best


@contextmanager
def all_places():
    """Every place is compared, not only the newest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "TRIES", 10**9)
        yield


@pytest.fixture
def thorough():
    with all_places():
        yield


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 9))
def test_it_finds_what_comparing_everything_finds(tokens, limit):
    draft, live = Lookup(), []
    for token in tokens:
        live.append(token)
        before = live.copy()
        with all_places():
            proposed = draft.propose(live, None, limit)
        expected, length = slow(live, limit)
        assert proposed == expected and live == before
        assert not proposed or draft.grade == sum(length >= least for least in GRADES)


@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), max_size=30)), max_size=12))
def test_after_truncate_it_is_as_if_it_had_never_been_there(steps):
    draft, live = Lookup(), []
    for pos, more in steps:
        del live[pos:]
        draft.truncate(pos)
        for token in more:
            live.append(token)
            fresh = Lookup()
            with all_places():
                expected = fresh.propose(live, None, 5)
                assert draft.propose(live, None, 5) == expected
            assert not expected or draft.grade == fresh.grade
            assert (draft._runs, draft._before, draft._last) == (fresh._runs, fresh._before, fresh._last)


@pytest.mark.parametrize("pos", [0, 1, 2, 100, 1999, 2000, 2001])
def test_truncate_at_the_edges(pos, thorough):
    chance = random.Random(1)
    tokens = [chance.randrange(40) for _ in range(2000)]
    draft = Lookup()
    draft.propose(tokens, None, 7)
    draft.truncate(pos)
    tokens = tokens[:pos] + [chance.randrange(40) for _ in range(5)]
    assert draft.propose(tokens, None, 7) == slow(tokens, 7)[0]


def test_a_source_is_followed_beyond_the_tries():
    """Newer places of the same run do not hide the passage that is being copied."""
    passage = [100, 101, *(3 * [1, 2, 50, 1, 2, 51, 1, 2, 52])]
    noise = [token for n in range(30) for token in (1, 2, 200 + n)]
    draft, live = Lookup(), [*passage, *noise, 100, 101]
    for token in passage[2:12]:
        assert draft.propose(live, None, 1) == [token]
        live.append(token)
