"""How far a prediction lies from an observation, and how far a right engine's would.

    r(t)      mean square difference of log probabilities after token t between the engine and a prediction
    e(t)      what a right engine has there: measured on replicas (clean runs with float noise), plus what storage
              rounding adds (``storage``)
    l(t)      ln sqrt(r / e): 0 is what a right engine shows, 1 is e times as much

Roundings that flip make e large and r heavy-tailed, so statistics are of l, and what is usual for them is measured on
replicas that are left out in turn. ``Reference`` holds one prediction with its replicas; ``misfit`` says by how many
of a right engine's own standard deviations an l is too large: as a whole, in some stretch of the prompt, or at one
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..observation import Observation

FLOAT_FLOOR = 1e-7
"""Two float32 engines are never taken to agree better than this (nats)."""
FOREIGN = np.log(30.0)
"""Another engine's float noise may be larger than our replicas' by this factor (its logarithm): fast exponentials,
float32 angles at long contexts. Hugging Face and ds4's C code, roundings off, are at 2 to 10 times ours."""
NOTHING = 1e3
"""Root of r where a row is no numbers at all: it agrees with nothing."""
WEIGHT = 0.25
"""Positions are worth this much of an independent one in a likelihood: a flipped row stays in the window and dirties
its neighbours. Only ranks depend on it; confidence is fitted afterwards (``calibration``)."""
TAIL = 4.0
"""Degrees of freedom of the likelihood's Student tail."""
SHORTEST = 8
"""Stretches of the prompt that are judged on their own have at least so many positions."""


def seen_through(seen: Observation, logprobs: np.ndarray) -> np.ndarray:
    """A prediction (T, V) where it was observed: (R, V) or (R, K) float64; NaN where it says nothing."""
    rows = logprobs[seen.rows]
    if seen.support is None:
        return (
            rows.astype(np.float64) if rows.shape[1] == seen.logprobs.shape[1] else np.full(seen.logprobs.shape, np.nan)
        )
    inside = (seen.support >= 0) & (seen.support < rows.shape[1])
    at = np.where(inside, seen.support, 0)
    return np.where(inside, np.take_along_axis(rows, at, axis=1), np.nan).astype(np.float64)


def squares(values: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """r (R,): mean square difference of two arrays (R, K); NaN where a row was not predicted. Equal infinities (masked
    tokens) are no difference; rows of which more than a tenth cannot be compared agree with nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = values - predicted
        difference[values == predicted] = 0.0
    usable = np.isfinite(difference)
    if usable.all():
        return np.einsum("rk,rk->r", difference, difference) / max(difference.shape[1], 1)
    given = ~np.isnan(values) & ~np.isnan(predicted)
    broken = np.isnan(values).all(axis=1)
    total = np.where(usable, difference, 0.0)
    out = np.einsum("rk,rk->r", total, total) / np.maximum(usable.sum(axis=1), 1)
    out[usable.sum(axis=1) < 0.9 * given.sum(axis=1)] = NOTHING**2
    out[np.isnan(predicted).all(axis=1)] = np.nan
    out[broken] = NOTHING**2
    return np.minimum(out, NOTHING**2)


def smooth(e: np.ndarray, reach: int = 4) -> np.ndarray:
    """Moving average (R,), shorter at the ends."""
    if len(e) <= 1:
        return e
    total = np.concatenate(([0.0], np.cumsum(e)))
    at = np.arange(len(e))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(e))
    return (total[high] - total[low]) / (high - low)


@dataclass(frozen=True)
class Fit:
    """How one prediction fits.

    level    l (R,), see above, NaN where nothing is predicted; after ``shift``
    shift    logarithm of how much larger the engine's float noise is than ours; 0 in coarse sets
    z        by how many standard deviations the whole is too far
    local    the same for the worst stretch, beyond what the worst of that many stretches shows by chance
    worst    the same for the worst single position
    score    log likelihood, for ranking
    rms      root of the mean of r, nats
    core     mean l, unshifted, of the nearer half of the positions: what a top-k decision that fell the other way
             somewhere leaves alone
    """

    level: np.ndarray
    shift: float
    z: float
    local: float
    worst: float
    score: float
    rms: float
    core: float

    @property
    def misfit(self) -> float:
        """The largest of the three."""
        return max(self.z, self.local, self.worst)


class Reference:
    """A prediction, its replicas and what they show about right engines, as seen through one observation.

    predicted  (R, K) the noiseless run
    replicas   runs with float noise, each (R, K)
    storage    (R,) mean square of what storage rounding adds to the observation, and ``shared`` (R,) how much of that
               is one offset for a whole row
    """

    def __init__(
        self, predicted: np.ndarray, replicas: Sequence[np.ndarray], storage: np.ndarray, coarse: bool,
        shared: np.ndarray | None = None,
    ):  # fmt: skip
        self.predicted, self.coarse, self.storage = predicted, coarse, storage
        r = np.array([squares(replica, predicted) for replica in replicas])
        n = len(replicas)
        floor = storage + FLOAT_FLOOR**2
        r = np.maximum(np.nan_to_num(r), FLOAT_FLOOR**2)
        self.noise = smooth(r.mean(axis=0))
        self.expected = self.noise + floor
        if storage.any():  # what is usual for stored numbers: the replicas, stored
            rng = np.random.default_rng(11)
            common = np.zeros_like(storage) if shared is None else np.minimum(shared, storage)
            step, offset = np.sqrt(storage - common)[:, None], np.sqrt(common)[:, None]
            replicas = [
                each + step * rng.standard_normal(each.shape) + offset * rng.standard_normal((len(each), 1))
                for each in replicas
            ]
            stored = np.array([squares(replica, predicted) for replica in replicas])
        else:
            stored = r + floor
        rest = [smooth((r.sum(axis=0) - r[k]) / (n - 1)) + floor for k in range(n)]
        usual = np.median(stored, axis=1)
        # medians of stored replicas, and how far they scatter: above, an engine has float noise of its own
        self.stored = float(usual.mean() + 3 * usual.std(ddof=1)) if storage.any() else 0.0
        self.own = np.array([_half_log(np.maximum(stored[k], floor) / rest[k]) for k in range(n)])
        self.usual = Usual(self.own)
        self.mean: np.ndarray | None = None
        if coarse:  # the mean of many runs has no flips of its own: a sharper place to measure from
            every = np.array(replicas)
            self.mean = every.mean(axis=0)
            spread = np.array([squares(each, self.mean) for each in every])
            # what is in the replicas holds the storage already; a sum of n runs, one of them the engine's
            self.around = np.maximum(smooth(spread.mean(axis=0)) * (n + 1) / (n - 1), floor)
            own = []
            for k in range(n):
                others = np.delete(every, k, axis=0)
                centre = others.mean(axis=0)
                scale = np.array([squares(each, centre) for each in others]).mean(axis=0)
                usual = np.maximum(smooth(scale) * n / (n - 2), floor)
                own.append(_half_log(np.maximum(squares(every[k], centre), floor) / usual))
            self.usual_mean = Usual(np.array(own))

    def fit(self, values: np.ndarray, predicted: np.ndarray | None = None) -> Fit:
        """Hold the observed values (R, K) against the prediction, or another one in the same rounding set."""
        r = squares(values, self.predicted if predicted is None else predicted)
        level = _half_log((r + 1e-300) / self.expected)
        known = np.isfinite(level)
        shift, expected = 0.0, self.expected
        if not self.coarse and known.any():
            # float noise of another size is one factor everywhere; storage rounding, which is known, is none
            bare = _half_log(np.maximum(r - self.storage, 1e-300) / (self.expected - self.storage))
            shift = float(np.clip(np.median(bare[known]), 0.0, FOREIGN))
            if np.median(r[known]) < self.stored:
                shift = 0.0  # storage explains it
            expected = np.exp(2 * shift) * (self.expected - self.storage) + self.storage
            level = _half_log((r + 1e-300) / expected)
        z, local, worst = self.usual.misfit(level)
        if self.coarse and predicted is None and self.mean is not None:
            other = self.usual_mean.misfit(_half_log((squares(values, self.mean) + 1e-300) / self.around))
            z, local, worst = max(z, other[0]), max(local, other[1]), max(worst, other[2])
        q = np.exp(2 * np.clip(level[known], -20, 20))
        width = 0.5 * np.log(expected[known])
        tail = 0.5 * (TAIL + 1) * np.log((TAIL + q) / (TAIL + 1))
        score = -WEIGHT * float(np.sum(width + tail))
        # a row that is not predicted is neither explained nor contradicted: it counts like one of unrelated engines
        score -= WEIGHT * float((~known).sum()) * 1.0
        rms = float(np.sqrt(np.mean(r[known]))) if known.any() else float("nan")
        bare = np.sort(_half_log((r[known] + 1e-300) / self.expected[known]))
        core = float(bare[: max(1, len(bare) // 2)].mean()) if len(bare) else 0.0
        return Fit(level, shift, z, local, worst, score, rms, core)


def _half_log(ratio: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return 0.5 * np.log(ratio)


class Usual:
    """What levels of right engines look like: statistics of replicas ``own`` (n, R), made once."""

    def __init__(self, own: np.ndarray):
        self.own = own
        n, count = own.shape
        self.more = float(np.sqrt(1 + 1 / n))
        self.single = float(own.std()) + 1e-3
        self.median = float(np.median(own))
        self.lengths: list[tuple[int, np.ndarray, float]] = []
        length = SHORTEST
        while length <= count // 2:
            usual = np.array([stretches(row, length, length // 2) for row in own])
            width = max(float(np.sqrt(usual.var(axis=0, ddof=1).mean())), self.single / np.sqrt(length), 0.01)
            self.lengths.append((length, usual.mean(axis=0), width))
            length *= 2

    def misfit(self, level: np.ndarray) -> tuple[float, float, float]:
        """(whole, stretch, position): standard deviations by which ``level`` (R,) lies above what replicas show."""
        known = np.isfinite(level)
        count = int(known.sum())
        if not count:
            return 0.0, 0.0, 0.0
        own = self.own if count == len(level) else self.own[:, known]
        means = own.mean(axis=1)
        # positions are not independent; with few replicas their scatter is not well known: never less than if they were
        spread = max(float(means.std(ddof=1)), self.single / np.sqrt(count), 0.01)
        z = (float(level[known].mean()) - float(means.mean())) / (spread * self.more)
        filled, local = np.where(known, level, self.median), 0.0
        for length, mean, width in self.lengths:
            here = (stretches(filled, length, length // 2) - mean) / (width * self.more)
            local = max(local, float(here.max()) - float(np.sqrt(2 * np.log(len(here)))))
        most = own.max(axis=1)
        # largest values scatter like a Gumbel variable: its scale from the replicas' own
        scale = max(float(most.std(ddof=1)), self.single / 2)
        worst = (float(level[known].max()) - float(most.mean())) / (scale * self.more) - 1.0
        return float(z), float(local), float(max(worst, 0.0))


def stretches(level: np.ndarray, length: int, step: int) -> np.ndarray:
    """Means of stretches of ``length`` positions that begin every ``step``."""
    total = np.concatenate(([0.0], np.cumsum(level)))
    start = np.arange(0, len(level) - length + 1, step)
    return (total[start + length] - total[start]) / length


def projection(values: np.ndarray, base: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Where the observed values lie on the line from one prediction (0) to another (1); all (R, K), ``weight`` (R,).
    NaN if the two are the same."""
    with np.errstate(invalid="ignore"):
        d, y = target - base, values - base
    use = np.isfinite(d) & np.isfinite(y)
    d, y = np.where(use, d, 0.0), np.where(use, y, 0.0)
    w = weight[:, None]
    length = float((w * d * d).sum())
    return float((w * d * y).sum()) / length if length > 0 else float("nan")
