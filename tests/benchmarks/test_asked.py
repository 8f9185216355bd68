"""Simulated questions: what is simulated is what it says."""

import numpy as np
import pytest

from benchmarks import asked


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
    scores = asked.scores(np.random.default_rng(4), np.full(4000, 0.25), 4)
    assert set(scores) <= {0, 0.25, 0.5, 0.75, 1} and scores.mean() == pytest.approx(0.25, abs=0.02)
