"""How well a candidate explains an observation, position by position.

The data is x(t) = ln of the rms difference of log probabilities between the foreign engine and a candidate after
token t. Replicas of a rounding set (clean runs with float noise) say how x is distributed when the candidate is right:
a centre mu(t) and an upper tail of scale b(t), both local in t because roundings that flip accumulate with depth.

    fits        log density of x under the replicas: flat below the centre, an exponential tail above
    differs     log density of x when the engines do different things: broad
    kappa       a closer candidate is better beyond that, as for any Gaussian noise: - kappa * max(x, mu)

Four hypotheses are scored for a candidate; all sums run over positions, TAU positions counting as one independent
observation (a flipped row stays in the window and dirties its neighbours):

    right       fits everywhere, or until a top-k decision close to a tie fell the other way
    more        right until some position, from there on something else as well
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .observation import Observation
from .signatures import Signature

KAPPA = 1.0
TAU = 4.0
OUTLIER = 0.02
SPAN = (np.log(1e-6), np.log(30.0))
TIE = 2e-5
"""Scale of the gap (in units of a decision's spread) that float noise decides."""

FINE_SHIFTS = (0.0, np.log(3), np.log(10), np.log(30))
"""A fine set's noise may be larger in another engine than in ours by these factors."""

NEVER = 14.0


def log_distance(seen: Observation, candidate: np.ndarray) -> np.ndarray:
    """x (R,): ln rms of the differences on the observed support; NaN where the candidate has no row."""
    rows = candidate[seen.rows].astype(np.float64)
    if seen.support is not None:
        safe = np.maximum(seen.support, 0)
        inside = (seen.support >= 0) & (seen.support < rows.shape[1])
        rows = np.where(inside, np.take_along_axis(rows, np.minimum(safe, rows.shape[1] - 1), axis=1), -np.inf)
        given = seen.support >= 0
    else:
        given = np.ones(rows.shape, bool)
    missing = np.isnan(candidate[seen.rows]).any(axis=1)
    with np.errstate(invalid="ignore"):
        difference = seen.logprobs - rows
    usable = given & np.isfinite(difference)
    lost = 1 - usable.sum(axis=1) / np.maximum(given.sum(axis=1), 1)
    square = np.where(usable, np.where(np.isfinite(difference), difference, 0.0) ** 2, 0.0).sum(axis=1)
    rms = np.sqrt(square / np.maximum(usable.sum(axis=1), 1))
    x = np.log(np.maximum(rms, 1e-12))
    x[lost > 0.1] = np.log(1e3)  # rows that are not numbers agree with nothing
    x[missing] = np.nan
    return np.minimum(x, np.log(1e3))


@dataclass(frozen=True)
class Noise:
    """Centre and tail scale of x for a right candidate (R,), and whether the set is coarse."""

    mu: np.ndarray
    b: np.ndarray
    coarse: bool

    @property
    def ceiling(self) -> np.ndarray:
        """x above this is no noise: first_position looks for it."""
        return self.mu + (4.0 if self.coarse else 2.0) * self.b + (0.0 if self.coarse else FINE_SHIFTS[-1])


def noise_model(seen: Observation, clean: Signature, replicas: list[Signature], coarse: bool, reach: int = 10) -> Noise:
    """From replicas, seen through the same support as the observation."""
    rows = np.array([between(seen, clean.logprobs, replica.logprobs) for replica in replicas])  # (n, R)
    floor = np.log(max(seen.quantum / np.sqrt(6), 1e-7))
    count = rows.shape[1]
    mu, high = np.empty(count), np.empty(count)
    for t in range(count):
        near = rows[:, max(0, t - reach) : t + reach + 1]
        mu[t], high[t] = np.quantile(near, 0.5), np.quantile(near, 0.95)
    # Laplace: the 95 % quantile lies ln 10 scales above the centre
    b = np.clip((high - mu) / np.log(10), 0.08 if coarse else 0.15, 2.0)
    return Noise(np.logaddexp(mu, floor), b, coarse)


def between(seen: Observation, clean: np.ndarray, replica: np.ndarray) -> np.ndarray:
    """x (R,) of a replica against the clean run, seen through the observation's support."""
    if seen.support is None:
        values = replica[seen.rows].astype(np.float64)
    else:
        values = np.take_along_axis(replica[seen.rows].astype(np.float64), np.maximum(seen.support, 0), axis=1)
    return log_distance(Observation(seen.ids, seen.rows, seen.support, values), clean)


@dataclass(frozen=True)
class Broad:
    """The density of x between engines that do different things."""

    centre: float
    spread: float = 0.9

    def __call__(self, x: np.ndarray) -> np.ndarray:
        z = (x - self.centre) / self.spread
        peak = np.exp(-0.5 * z * z) / (self.spread * np.sqrt(2 * np.pi))
        return np.log(0.5 * peak + 0.5 / (SPAN[1] - SPAN[0]))


def broad(seen: Observation, clean: Signature) -> Broad:
    """Centred below the distance of unrelated positions, which is as different as two outputs can be."""
    rows = clean.logprobs[seen.rows].astype(np.float64)
    if seen.support is not None:
        rows = np.take_along_axis(rows, np.maximum(seen.support, 0), axis=1)
    unrelated = np.sqrt(2) * rows.std(axis=1).mean()
    return Broad(float(np.log(0.4 * max(unrelated, 1e-3))))


@dataclass(frozen=True)
class Score:
    """Log likelihoods of the hypotheses about one candidate, and how it was reached.

    until   index of the row from which on ``more`` assumes something else (rows before it fit)
    shift   factor on the noise that fits best, as a logarithm
    """

    right: float
    more: float
    until: int
    shift: float
    distance: float


def score(x: np.ndarray, noise: Noise, differs: Broad, margin: np.ndarray) -> Score:
    """Score x (R,). ``margin`` (R,) is the closest decision since the row before (see ``row_margin``)."""
    best: Score | None = None
    known = np.isfinite(x)
    other = np.where(known, differs(np.where(known, x, 0.0)), 0.0)
    for shift in (0.0,) if noise.coarse else FINE_SHIFTS:
        mu = noise.mu + shift
        over = np.maximum(np.where(known, x, 0.0) - mu, 0.0)
        density = -np.log(2 * noise.b) - over / noise.b
        fits = np.logaddexp(np.log1p(-OUTLIER) + density, np.log(OUTLIER) + other) if noise.coarse else density
        closeness = -KAPPA * np.maximum(np.where(known, x, 0.0), mu)
        # a row that the candidate cannot predict is neither explained nor contradicted
        nothing = -KAPPA * differs.centre + np.log(0.5 / (SPAN[1] - SPAN[0]))
        inside = np.where(known, fits + closeness, nothing)
        outside = np.where(known, np.logaddexp(fits, other) - np.log(2) + closeness, nothing)
        before = np.concatenate(([0.0], np.cumsum(inside)))
        after = np.concatenate((np.cumsum(outside[::-1])[::-1], [0.0]))
        switch = (before + after - 0.5 * shift) / TAU
        # a decision that fell the other way shows where it fell: a tie before rows that still fit explains nothing
        shows = known & (np.where(known, x, 0.0) > noise.ceiling)
        flip = np.concatenate((-np.where(shows, np.minimum(margin / TIE, NEVER), NEVER) - np.log(2), [0.0]))
        right = float(np.max(switch + (flip if not noise.coarse else np.where(flip == 0.0, 0.0, -NEVER))))
        until = int(np.argmax(switch[:-1])) if len(x) else 0
        more = float(switch[until]) - float(np.log(len(x) + 1))
        found = Score(right, more, until, shift, float(np.mean(np.where(known, x, 0.0))))
        if best is None or max(found.right, found.more) > max(best.right, best.more):
            best = found
    assert best is not None
    return best


def row_margin(seen: Observation, margin: np.ndarray) -> np.ndarray:
    """Closest decision among the tokens since the previous observed row: a flip there shows at this row first."""
    out, start = np.empty(len(seen.rows)), 0
    for r, row in enumerate(seen.rows):
        out[r] = margin[start : int(row) + 1].min()
        start = int(row) + 1
    return out
