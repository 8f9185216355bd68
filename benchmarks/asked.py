"""Simulated questions: the difficulty of each, and how a worse engine answers them.

Each question has a probability of being answered rightly, drawn from a U-shaped distribution: most questions are nearly
always right or nearly always wrong, as with real packs and real models. A loss takes one of two forms:

everywhere   every question becomes harder, some more than others
some         a share of the questions is almost always wrong, the others stay as they were
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

Rng = np.random.Generator
Loss = Callable[[Rng, np.ndarray, float], np.ndarray]
"""Type of a function that returns the probabilities (n,) of right answers after a loss.

Arguments: random generator, probabilities (n,) before the loss, size of the loss.
"""

ENDS = 0.7, 0.3
"""Parameters of the beta distribution of probabilities: mean 0.7, standard deviation 0.32."""
LEFT = 0.1
"""Factor on the probability of a question lost by ``some``."""


def questions(rng: Rng, n: int) -> np.ndarray:
    """Draw the probabilities (n,) that each question is answered rightly."""
    return rng.beta(*ENDS, n)


def everywhere(rng: Rng, p: np.ndarray, size: float) -> np.ndarray:
    """Return ``p`` (n,) after a loss in every question: log odds fall by an exponential amount of mean ``size``."""
    log_odds = special.logit(np.clip(p, 1e-6, 1 - 1e-6))
    return special.expit(log_odds - size * rng.exponential(1.0, len(p)))


def some(rng: Rng, p: np.ndarray, size: float) -> np.ndarray:
    """Return ``p`` (n,) after a share ``size`` of the questions is lost: their ``p`` falls by the factor LEFT."""
    return np.where(rng.random(len(p)) < size, LEFT * p, p)


LOSSES: dict[str, Loss] = {"everywhere": everywhere, "some": some}


def scores(rng: Rng, p: np.ndarray, epochs: int) -> np.ndarray:
    """Draw the score (n,) of each question: the mean of right answers over ``epochs`` tries."""
    return rng.binomial(epochs, p) / epochs


def mean_loss(loss: Loss, size: float) -> float:
    """Return the expected loss of score of an engine with this loss, by simulation."""
    rng = np.random.default_rng(1)
    p = questions(rng, 400_000)
    return float((p - loss(rng, p, size)).mean())
