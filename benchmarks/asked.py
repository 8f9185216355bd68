"""Simulated test questions, and how an engine answers them that has become worse (a *loss*).

Each question has a probability of being answered correctly, drawn from a U-shaped distribution: most questions are
nearly always or nearly never answered correctly, as with real question packs and models. A loss takes one of two forms:

everywhere   every question becomes harder, some more than others
some         a share of the questions is almost always answered wrongly, the others stay as they were
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

Rng = np.random.Generator
Loss = Callable[[Rng, np.ndarray, float], np.ndarray]
"""Type of a function that returns the probabilities (n,) of correct answers after a loss.

Its arguments are a random generator, the probabilities (n,) before the loss, and the size of the loss.
"""

ENDS = 0.7, 0.3
"""Parameters of the beta distribution of probabilities: mean 0.7, standard deviation 0.32."""
LEFT = 0.1
"""Factor on the probability of a question lost by ``some``."""


def questions(rng: Rng, n: int) -> np.ndarray:
    """Draw, for each of n questions, the probability (n,) that it is answered correctly."""
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
    """Draw the score (n,) of each question: the share of correct answers in ``epochs`` tries."""
    return rng.binomial(epochs, p) / epochs


def mean_loss(loss: Loss, size: float) -> float:
    """Return by how much an engine's score is expected to fall with this loss, by simulation."""
    rng = np.random.default_rng(1)
    p = questions(rng, 400_000)
    return float((p - loss(rng, p, size)).mean())
