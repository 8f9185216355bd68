"""How many repetitions there are: by number, by budget, by what is to be found."""

from contextlib import nullcontext

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.runs.speed import in_turn, judge, per_cent
from ds4ref.speed_bench.plan import Lane, Plan
from ds4ref.speed_bench.repetitions import PILOT, Repetitions, duration, rounds_for, shrinks
from ds4ref.speed_bench.samples import seconds

DEPTHS = (64, 128)


def lanes(rounds, noise=0.0, slower=0.0, seed=0, first=0):
    """Samples of two lanes; a prefill and a decode of a second each, with independent errors of a round."""
    chance = np.random.default_rng([seed, 7])
    found = [[], []]
    for rep in range(rounds):
        for lane, samples in enumerate(found):
            for depth in DEPTHS:
                speeds = 64 * (1 - slower * lane) * np.exp(chance.normal(0, noise, 2))
                if rep >= first:
                    samples.append({"rep": rep, "ctx_tokens": depth, "prefill_tokens": 64, "gen_tokens": 64,
                                    "prefill_tps": speeds[0], "gen_tps": speeds[1]})  # fmt: skip
    return found


def plan(count=1, **fields):
    return Plan(tuple(Lane(name=str(i)) for i in range(count)), depths=DEPTHS, gen_tokens=64, **fields)


def test_a_number_that_was_given_is_kept():
    assert Repetitions(plan(reps=7, budget=1)).wanted([[]]) == 7


def test_lanes_in_turn_have_five():
    assert Repetitions(plan(2, budget=1)).wanted([[], []]) == 5


@pytest.mark.parametrize("budget, reps", [(1000, 5), (20, 5), (19.9, 4), (8.5, 2), (2, 1)])
def test_as_many_as_the_budget_allows(budget, reps):
    said = []
    counting = Repetitions(plan(budget=budget), said.append)
    assert counting.wanted([[]]) == 1, "the first one shows how long it takes"
    assert counting.wanted(lanes(1)[:1]) == reps == counting.fixed
    assert len(said) == (reps < 5) and all("one takes 4 s" in line for line in said)


def test_the_noise_decides_how_many_rounds_find_it():
    said = []
    counting = Repetitions(plan(2, detect=3.0, budget=1e5), said.append)
    assert counting.wanted([[], []]) == PILOT and counting.fixed is None
    rounds = counting.wanted(lanes(PILOT, 0.04))
    assert rounds > PILOT and "detect 3 % with 80 % power" in said[0]
    assert counting.wanted(lanes(PILOT, 0.4)) == rounds, "decided once"
    spent = sum(seconds(entry) for samples in lanes(PILOT, 0.04) for entry in samples) / PILOT
    for more in (1e-6, -1e-6):  # the budget is that of these rounds, or is one round short
        counting = Repetitions(plan(2, detect=3.0, budget=spent * (rounds + more)))
        refused = f"needs {rounds} rounds .*allows {rounds - 1}, which detect"
        with nullcontext() if more > 0 else pytest.raises(DataError, match=refused):
            assert counting.wanted(lanes(PILOT, 0.04)) == rounds


def test_what_the_budget_cannot_find_is_refused_with_what_it_can():
    with pytest.raises(DataError) as error:
        Repetitions(plan(2, detect=0.1, budget=100)).wanted(lanes(PILOT, 0.05))
    said = str(error.value)
    assert said.startswith("refused: ") and "0.1 % needs" in said and "--budget 100 s allows 12, which detect" in said
    assert 2 < float(said.rpartition("detect ")[2].rstrip(" %")) < 30


def test_rounds_follow_the_formula():
    assert shrinks(PILOT) == pytest.approx(1) and shrinks(4 * PILOT) < 0.5
    share = np.log1p(0.03) / shrinks(40)
    assert rounds_for(share, 3.0) == 40 and rounds_for(0.001, 3.0) == PILOT and rounds_for(5.0, 0.01) is None


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_three_per_cent_are_found_in_eighty_of_a_hundred(noise):
    """Simulated runs, pilot and all; those without a difference are not declared different."""
    found, wrong = 0, 0
    for seed in range(60):
        rounds = Repetitions(plan(2, detect=3.0, budget=1e6)).wanted(lanes(PILOT, noise, 0.03, seed))
        for slower in (0.03, 0.0):
            said = {judge(per_cent(i)) for i in in_turn(*lanes(rounds, noise, slower, seed)).values()}
            found, wrong = (
                found + (slower > 0 and "worse" in said),
                wrong + (slower == 0 and said & {"worse", "better"} != set()),
            )
    assert found >= 48 and wrong <= 4


@pytest.mark.parametrize("seconds, said", [
    (0.5, "0.5 s"), (9.75, "9.75 s"), (119.4, "119 s"), (120, "2 min"), (7169, "119 min"), (7199, "2 h"),
    (36e5, "1,000 h"),
])  # fmt: skip
def test_durations(seconds, said):
    assert duration(seconds) == said
