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


def test_a_machine_that_is_too_busy_is_refused_and_not_judged(monkeypatch):
    """Neither is the slower arm found nor declared equal."""
    from ds4ref.errors import DataError

    rows = [{"ctx_tokens": 24, "rep": rep, "prefill_tps": 9.0, "gen_tps": 9.0, "prefill_tokens": 24, "gen_tokens": 16,
             "warnings": {"busy": "load 30"}} for rep in range(6)]  # fmt: skip
    lanes = [SimpleNamespace(samples=rows), SimpleNamespace(samples=rows)]
    plan = SimpleNamespace(budget=20.0)

    def judged(*args):
        return SimpleNamespace(lanes=lanes, reps=6, execute=lambda: None)

    def refused(*args):
        def execute():
            raise DataError("refused: no difference can be told")

        return SimpleNamespace(lanes=lanes, reps=6, execute=execute)

    for trial in (judged, refused):
        monkeypatch.setattr(arms, "Trial", trial)
        verdicts, _, rounds = arms.trial(None, None, plan, 0.03)
        assert verdicts == dict.fromkeys(("overall", "prefill", "decode"), "refused") and rounds == 6
