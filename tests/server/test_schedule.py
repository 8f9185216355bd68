"""Who computes next, by the schedule alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.server.schedule import Schedule


class Entry:
    """Two of one name are two."""

    def __init__(self, name):
        self.name = name


def turns(schedule, count, seconds=1.0):
    """The names of the entries that come next, each of which uses ``seconds``."""
    names = []
    for _ in range(count):
        entry = schedule.next()
        schedule.charge(entry, seconds)
        names.append(entry.name)
    return names


def test_a_client_with_many_gets_no_more_than_one_with_one():
    schedule = Schedule()
    for n in range(5):
        schedule.add("many", Entry(f"m{n}"))
    schedule.add("one", Entry("one"))
    found = Counter(turns(schedule, 100))
    assert found.pop("one") == 50 and set(found.values()) == {10}


def test_who_leaves_and_comes_back_owes_what_it_used():
    """Many short requests, each with a long prompt, are no way to more than half."""
    schedule, used = Schedule(), Counter()
    schedule.add("steady", Entry("steady"))
    for _ in range(200):
        entry = Entry("again")
        schedule.add("again", entry)
        while True:
            got = schedule.next()
            seconds = 1.0 if got is entry else 0.1
            schedule.charge(got, seconds)
            used[got.name] += seconds
            if got is entry:
                break
        schedule.remove(entry)
    assert used["again"] == pytest.approx(used["steady"], rel=0.05)


@given(st.lists(st.sampled_from(["add", "remove", "run"]), max_size=60), st.integers(0, 2**32))
def test_nobody_who_could_compute_waits_for_ever(what, seed):
    """Of the entries that are there all the time, each computes within twice the time that all have taken."""
    rng, schedule, there = random.Random(seed), Schedule(), []
    for one in what:
        if one == "add":
            entry = Entry(str(len(there)))
            schedule.add(rng.choice("abc"), entry)
            there.append(entry)
        elif one == "remove" and there:
            schedule.remove(there.pop(rng.randrange(len(there))))
        elif there:
            schedule.charge(schedule.next(), rng.choice([0.01, 0.1, 1.0]))
    assert sorted(map(id, schedule)) == sorted(map(id, there)) and len(schedule) == len(there)
    left = set(map(id, there))
    for _ in range(400 * len(there)):
        entry = schedule.next()
        schedule.charge(entry, 0.1)
        left.discard(id(entry))
    assert not left
