"""The bugs of ``benchmarks.strangers`` are in our server while they are wanted, and at no other time."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.strangers import BUGS, LOOKUP, check


def test_every_family_has_two_bugs_and_each_is_taken_out_again() -> None:
    assert set(Counter(bug.family for bug in BUGS.values()).values()) == {2}
    for name, bug in BUGS.items():
        right = [vars(owner).get(attribute) for owner, attribute, _ in bug.patches]
        with bug:
            wrong = [vars(owner)[attribute] for owner, attribute, _ in bug.patches]
        assert all(one is not two for one, two in zip(right, wrong, strict=True)), name
        assert [vars(owner).get(attribute) for owner, attribute, _ in bug.patches] == right, name
        assert (bug.drafts == LOOKUP) == (bug.family == "verifier") and bug.effect, name


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUGS)
def test_every_bug_changes_answers_or_log_probabilities(name: str) -> None:
    """And nothing before the situation that it is about: prompts of other lengths, the first of several rounds."""
    result = check(BUGS[name])
    assert result["texts_changed"] or max(result["nats"]) > 1e-3
    if BUGS[name].family in ("lengths", "cache", "template"):
        assert result["nats"][0] == 0
