"""The choice of draft and depth, on simulated sessions: what it converges to, what it may cost, how it recovers."""

from __future__ import annotations

from statistics import mean

import pytest

from ds4ref.drafts.speculation import Counts, Speculation
from ds4ref.engine_options import MOST_DRAFTED

from .simulate import STEEP, TABLE, Clock, Process, run, simulated

SEEDS = range(3)


def expected(rate: float, depth: int, table=TABLE, cost: float = 0.0) -> float:
    """The speed-up of a fixed depth."""
    return sum(rate**n for n in range(depth + 1)) / (table[depth + 1] + depth * cost)


def chosen(rate: float, table=TABLE, seconds: float = 0.0, seed: int = 1) -> tuple[float, int]:
    """The speed-up that the depths chosen after 700 tokens are expected to give, and the one chosen most.

    Expected, not observed: whether tokens happened to be accepted is chance, which depth was tried is the choice. One
    pass in a hundred takes three times as long, and so does the first of its kind.
    """
    clock = Clock()
    speculation = Speculation([Process(clock, lambda at, place: rate, seconds=seconds, seed=seed)], clock=clock)
    tokens: list[int] = []
    run(speculation, clock, 700, table=table, tokens=tokens, first=3.0, seed=seed)
    speculation.counts = Counts()
    run(speculation, clock, 2000, table=table, tokens=tokens, seed=seed + 1)
    passes = {depth: count for (what, _, depth), count in speculation.counts.items() if what == "passes"}
    committed = sum(count * sum(rate**n for n in range(depth + 1)) for depth, count in passes.items())
    took = sum(count * (table[depth + 1] + depth * seconds / 0.1) for depth, count in passes.items())
    return committed / took, max(passes, key=lambda depth: passes[depth])


@pytest.mark.parametrize("table", [TABLE, STEEP])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_it_converges_to_the_best_fixed_depth(rate, table):
    best = max(expected(rate, depth, table) for depth in range(8))
    assert mean(chosen(rate, table, seed=seed)[0] for seed in SEEDS) >= 0.95 * best


def test_a_dear_draft_is_weighed():
    """0.2 of a pass for each of its tokens: it pays at small depths only."""
    speeds = [expected(0.8, depth, TABLE, 0.2) for depth in range(8)]
    speed, depth = chosen(0.8, TABLE, seconds=0.02)
    assert speed >= 0.95 * max(speeds)
    assert abs(depth - speeds.index(max(speeds))) <= 1


@pytest.mark.parametrize("table", [TABLE, STEEP])
@pytest.mark.parametrize("count", [128, 1000])
@pytest.mark.parametrize("seconds", [0.0, 0.004])
def test_where_nothing_is_accepted_it_costs_less_than_two_percent(count, table, seconds):
    speeds = [
        simulated(
            lambda at, place: 0.0, count, table=table, seed=seed, drafts={"seed": seed, "seconds": seconds}, first=3.0
        )
        for seed in SEEDS
    ]
    assert min(speeds) >= 0.98


def test_it_recovers_after_a_change():
    for table in (TABLE, STEEP):
        clock, rate = Clock(), [0.0]
        speculation = Speculation([Process(clock, lambda at, place: rate[0])], clock=clock)  # noqa: B023
        tokens: list[int] = []
        run(speculation, clock, 1500, table=table, tokens=tokens)
        rate[0] = 0.9
        run(speculation, clock, 400, table=table, tokens=tokens)
        best = max(expected(0.9, depth, table) for depth in range(8))
        assert 600 / run(speculation, clock, 600, table=table, tokens=tokens) >= 0.85 * best
        rate[0] = 0.0
        lost = run(speculation, clock, 400, table=table, tokens=tokens) - 400
        assert lost <= 20 + 0.01 * 400
        assert 1000 / run(speculation, clock, 1000, table=table, tokens=tokens) >= 0.985


@pytest.mark.parametrize("length", [30, 100, 300])
def test_a_burst_of_load_does_not_last(length):
    """The machine is three times as slow for a while, which says nothing of what rows cost."""
    clock, tokens = Clock(), list[int]()
    speculation = Speculation([Process(clock, lambda at, place: 0.95, seconds=0.002)], clock=clock)
    before = 1000 / run(speculation, clock, 1000, tokens=tokens)
    run(speculation, clock, length, tokens=tokens, table=lambda at, rows: 3 * TABLE[rows])
    assert 500 / run(speculation, clock, 500, tokens=tokens) > 0.9 * before


def test_the_depth_below_and_plain_passes_are_tried_while_the_deepest_pays():
    clock = Clock()
    speculation, tokens = Speculation([Process(clock, lambda at, place: 1.0)], clock=clock), list[int]()
    run(speculation, clock, 700, tokens=tokens, noise=0, hiccups=0)
    speculation.counts = Counts()
    run(speculation, clock, 4000, tokens=tokens, noise=0, hiccups=0)
    passes = {depth: count for (what, _, depth), count in speculation.counts.items() if what == "passes"}
    assert passes.keys() >= {0, MOST_DRAFTED - 1, MOST_DRAFTED} and passes[MOST_DRAFTED] > 0.9 * sum(passes.values())


def test_two_drafts_are_at_least_as_good_as_each():
    def made(clock: Clock, *names: str) -> Speculation:
        drafts = {
            "lookup": Process(clock, lambda at, place: 0.95, name="lookup", answers=0.3, seed=3),
            "mtp": Process(clock, lambda at, place: 0.7, name="mtp", seconds=0.005),
        }
        return Speculation([drafts[name] for name in names], clock=clock)

    speeds = {}
    for names in (("lookup",), ("mtp",), ("lookup", "mtp")):
        clock = Clock()
        speeds[names] = 4000 / run(made(clock, *names), clock, 4000)
    assert speeds["lookup", "mtp"] >= 0.97 * max(speeds.values())


# --- edges


class Fixed:
    """Always the same draft, and what it was told."""

    def __init__(self, draft: list[int], name: str = "given"):
        self.name, self.draft, self.asked, self.truncated = name, draft, [], []

    def propose(self, tokens, streams, limit):
        self.asked.append((list(tokens), streams, limit))
        return self.draft[:limit]

    def truncate(self, pos):
        self.truncated.append(pos)


def warm(draft, **options) -> Speculation:
    speculation = Speculation([draft], clock=Clock(), **options)
    for _ in range(3):
        speculation.passed(1, 0.1)
    return speculation


def test_room_is_kept_to():
    for depth in (0, 3, 7):
        speculation = warm(Fixed([1, 2, 3, 4, 5, 6, 7, 8, 9]), depth=depth)
        assert speculation.propose([1], None, 0) == []
        assert speculation.propose([1], None, -1) == []
        assert speculation.propose([1], None, 1) == [1]
    speculation = warm(Fixed(list(range(9))), depth=9)
    assert len(speculation.propose([1], None, 100)) == MOST_DRAFTED == 7
    assert len(speculation.propose([1], None, 5)) == 5
    speculation = warm(Fixed(list(range(9))), depth=5, most=2)
    assert len(speculation.propose([1], None, 100)) == 2
    assert warm(Fixed([1]), most=0).propose([1], None, 100) == []


def test_nothing_is_tried_before_plain_passes_were_measured():
    draft = Fixed([1, 2])
    speculation = Speculation([draft], clock=Clock())
    assert speculation.propose([1], None, 9) == []
    speculation.passed(1, 0.1)
    assert speculation.propose([1], None, 9) == []
    speculation.passed(1, 0.1)
    assert speculation.propose([1], None, 9) == [1]


def test_counts():
    speculation = warm(Fixed([1, 2, 3]), depth=3)
    assert speculation.propose([1], None, 9) == [1, 2, 3]
    speculation.passed(4, 0.2)
    speculation.settled(2)
    assert speculation.propose([1], None, 1) == [1]
    speculation.passed(2, 0.2)
    speculation.settled(0)
    assert speculation.counts == {
        ("passes", "", 0): 3, ("passes", "given", 3): 1, ("drafted", "given", 3): 3, ("accepted", "given", 3): 2,
        ("passes", "given", 1): 1, ("drafted", "given", 1): 1, ("accepted", "given", 1): 0,
    }  # fmt: skip
    assert str(speculation.counts) == "guessed: 2 of 4 tokens right, 1.40 tokens a pass"


def test_what_was_not_proposed_not_passed_or_cut_off_is_not_counted():
    speculation = warm(Fixed([1, 2, 3]), depth=3)
    speculation.settled(3)
    speculation.propose([1], None, 9)
    speculation.settled(3)  # its pass never came
    speculation.propose([1], None, 9)
    speculation.passed(4, 0.2)
    speculation.truncate(0)
    speculation.settled(3)
    speculation.propose([1], None, 9)
    speculation.passed(4, 0.2)
    speculation.propose([1], None, 9)  # the answer ended before the first was settled
    speculation.passed(4, 0.2)
    speculation.settled(1)
    speculation.settled(1)
    assert speculation.counts["passes", "given", 3] == 1 and speculation.counts.of("accepted") == 1
