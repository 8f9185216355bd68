"""The slowed arm is as slow as it says, and shares come with their intervals."""

from types import SimpleNamespace

import pytest

from benchmarks import arms
from ds4ref.speed_bench import sweep


@pytest.fixture
def clock(monkeypatch):
    """Every look at it takes a millisecond."""
    found = SimpleNamespace(now=0.0)

    def look():
        found.now += 0.001
        return found.now

    monkeypatch.setattr(sweep, "time", SimpleNamespace(perf_counter=look))
    return found


def test_a_slowed_session_takes_longer_by_its_share(clock):
    done = []

    def work(*args):
        clock.now += 10.0
        done.append(args)

    session = arms.Slowed(SimpleNamespace(append=work, sync=work, pos=7), 0.05)
    session.append(3)
    assert done == [(3,)] and session.pos == 7
    assert clock.now == pytest.approx(10.5, abs=0.01)
    session.sync([1, 2])
    assert clock.now == pytest.approx(21.0, abs=0.02)


def test_shares_have_intervals():
    found = arms.shares(["worse", "unclear", "worse", "same"], ("worse", "mixed"))
    assert (found["hits"], found["of"], found["share"]) == (2, 4, 0.5) and 0.1 < found["low"] < 0.2
