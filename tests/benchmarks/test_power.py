"""The simulated power of an eval: what is simulated is what it says, and what it finds agrees with exact sums."""

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks import asked, power
from ds4ref.runs import stats


def test_questions_are_of_unlike_difficulty():
    p = asked.questions(np.random.default_rng(1), 20_000)
    assert p.mean() == pytest.approx(0.7, abs=0.01) and p.std() == pytest.approx(0.324, abs=0.01)
    assert ((p < 0.1) | (p > 0.9)).mean() > 0.5, "most are at the ends"


@pytest.mark.parametrize("kind", asked.LOSSES)
def test_losses_are_losses(kind):
    loss = asked.LOSSES[kind]
    assert asked.mean_loss(loss, 0.0) == pytest.approx(0.0, abs=1e-6)
    assert 0 < asked.mean_loss(loss, 0.1) < asked.mean_loss(loss, 0.4)
    p = asked.questions(np.random.default_rng(2), 1000)
    assert (loss(np.random.default_rng(3), p, 0.4) <= p + 1e-6).all()


def test_scores_are_means_over_epochs():
    rng = np.random.default_rng(4)
    found = asked.scores(rng, np.full(4000, 0.25), 4)
    assert set(found) <= {0, 0.25, 0.5, 0.75, 1} and found.mean() == pytest.approx(0.25, abs=0.02)
    again = power.greedy(0.0)(np.random.default_rng(5), 500, 0.0)
    assert not again.any(), "greedy answers do not change by themselves"
    assert set(power.greedy(0.3)(np.random.default_rng(5), 500, 0.2)) == {-1.0, 0.0, 1.0}


def test_power_without_noise_is_a_binomial():
    """Five losses of 93 and nothing else put the interval below zero, four do not."""
    high = [stats.change_interval(np.r_[-np.ones(k), np.zeros(93 - k)]).high for k in (4, 5)]
    assert high[0] > 0 > high[1]
    size = 0.1
    exact = scipy_stats.binom.sf(4, 93, 0.7 * size)
    found, better, _ = power.verdicts(power.greedy(0.0), 93, size, 3000)
    assert found == pytest.approx(exact, abs=0.03) and better == 0
    eighty = power.detectable(power.greedy(0.0), 93, 1.0, 600)
    assert scipy_stats.binom.sf(4, 93, 0.7 * eighty) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("epochs", [1, 4])
def test_equal_engines_are_rarely_told_apart_and_epochs_find_more(epochs):
    worse, better, claimed = power.verdicts(power.sampled("everywhere", epochs), 93, 0.0, 600)
    assert worse + better < 0.08
    found = 100 * asked.mean_loss(asked.everywhere, power.detectable(power.sampled("everywhere", epochs), 93, 8.0, 300))
    assert claimed == pytest.approx(found, rel=0.2), "what a comparison claims is what it finds"
    assert (found < 10) == (epochs == 4)


def test_the_command_prints_a_table(capsys):
    assert power.main(["--questions", "25", "--trials", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12 and lines[1].startswith("loss everywhere, 1 epoch ")
    assert json.loads(lines[-1])["questions"] == 25
