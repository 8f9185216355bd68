"""Drafts of chosen quality."""

from __future__ import annotations

import pytest

from ds4ref.drafts.given import Given

TEXT = [position * 7 % 50 for position in range(20_000)]


def shares(draft: Given) -> float:
    right = sum(draft.propose(TEXT[:at], None, 1) == [TEXT[at]] for at in range(1, len(TEXT)))
    return right / (len(TEXT) - 1)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_the_rate_is_the_one_asked_for(rate):
    share = shares(Given(TEXT, rate, 50, seed=4))
    assert abs(share - rate) <= 4 * (rate * (1 - rate) / len(TEXT)) ** 0.5


def test_wrong_tokens_are_all_other_ids_of_the_vocabulary():
    draft = Given([2] * 2000, 0.0, 5)
    assert set(draft.propose([2], None, 1999)) == {0, 1, 3, 4}
    assert set(Given([1] * 100, 0.0, 2).propose([1], None, 99)) == {0}


def test_a_positions_token_does_not_depend_on_how_it_is_asked_for():
    draft = Given(TEXT, 0.5, 50, seed=1)
    at_once = draft.propose(TEXT[:10], None, 30)
    draft.truncate(3)
    assert [draft.propose(TEXT[:at], None, 1)[0] for at in range(10, 40)] == at_once
    assert Given(TEXT, 0.5, 50, seed=2).propose(TEXT[:10], None, 30) != at_once


def test_the_end_and_what_is_not_the_text():
    draft = Given(TEXT[:10], 1.0, 50)
    assert draft.propose(TEXT[:8], None, 7) == TEXT[8:10]
    assert draft.propose(TEXT[:9], None, 1) == TEXT[9:10]
    assert draft.propose(TEXT[:10], None, 7) == []
    assert draft.propose(TEXT[:11], None, 7) == []
    assert draft.propose([*TEXT[:7], TEXT[7] + 1], None, 7) == []
    assert draft.propose([], None, 7) == []
    assert draft.propose(TEXT[:8], None, 0) == []
