"""The likelihood: how far a prediction lies from an observation, and how far a right engine's would.

    r(t)      mean square difference of log probabilities after token t between the engine and a prediction
    e(t)      the same of a right engine: measured on replicas (runs with float noise), plus what storage rounding adds
              (``storage``)
    l(t)      ln sqrt(r / e): 0 is what a right engine shows, 1 is e times as much

Roundings that flip make e large and r heavy-tailed, so statistics are of l, and their distribution is measured on
replicas, each left out in turn. ``Reference`` holds one prediction with its replicas. ``Fit.score`` is the log
likelihood; ``Fit.misfit`` says by how many standard deviations of right engines an l is too large: as a whole, in some
stretch of the prompt, or at one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..observation import Observation
from .signatures import REPLICAS

LIMIT = 3.0
"""The threshold of "nothing here explains it": the misfit at which an unknown mistake (1 to 1000 standard deviations,
log-uniform, a quarter of all engines) becomes likelier than a right engine (Student, 7 degrees of freedom): 2.9."""
FLOAT_FLOOR = 1e-7
"""Nats: one float32 unit in the last place of a log probability near -1; no two engines agree better."""
FOREIGN = np.log(30.0)
"""Log of the largest float noise of another engine in units of ours: three times the largest measured, 10 (fast
exponentials, float32 angles at long contexts; Hugging Face and ds4's C code, roundings off, are at 2 to 10)."""
NOTHING = 1e3
"""Root of r where a row is no numbers at all: beyond every log probability, so that it agrees with nothing."""
WEIGHT = 0.25
"""Share of an independent observation that a position is worth in a likelihood: 1 / (1 + 2 sum of autocorrelations) of
l on replicas, 0.04 to 1 in the 13 sets, geometric mean 0.23 (golden model tiny, 200 positions)."""
TAIL = 4.0
"""Degrees of freedom of the likelihood's Student tail: r / e is above 21 once in a hundred then; replicas of the 13
sets reach 3 to 71 that often (the same model)."""
SHORTEST = 8
"""Positions of the shortest stretch that is judged on its own: below, the largest position says the same."""


def log_student(z: float, dof: int = REPLICAS - 1) -> float:
    """Log density, up to a constant, of a statistic whose spread comes from ``dof`` + 1 replicas."""
    return float(-0.5 * (dof + 1) * np.log1p(z * z / dof))


def limit_of(count: int, dof: int = REPLICAS - 1) -> float:
    """Threshold for each of ``count`` statistics from replicas that must all pass: a right engine misses any of them as
    seldom as it misses LIMIT where there is one. Student's tail falls about like (1 + z^2 / dof)^(-dof / 2)."""
    return float(np.sqrt(dof * ((1 + LIMIT**2 / dof) * count ** (2 / dof) - 1)))


def seen_through(seen: Observation, logprobs: np.ndarray) -> np.ndarray:
    """Select the observed numbers of a prediction (T, V): (R, V) or (R, K) float64; NaN where it says nothing."""
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
    comparable = ~np.isnan(values) & ~np.isnan(predicted)
    total = np.where(usable, difference, 0.0)
    out = np.einsum("rk,rk->r", total, total) / np.maximum(usable.sum(axis=1), 1)
    out[usable.sum(axis=1) < 0.9 * comparable.sum(axis=1)] = NOTHING**2
    out[np.isnan(predicted).all(axis=1)] = np.nan
    out[np.isnan(values).all(axis=1)] = NOTHING**2
    return np.minimum(out, NOTHING**2)


def smooth(e: np.ndarray, reach: int = 4) -> np.ndarray:
    """Moving average (R,) of 2 ``reach`` + 1 positions, shorter at the ends."""
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
    shift    log of how much larger the engine's float noise is than ours; 0 in coarse sets
    z        by how many standard deviations the whole is too far
    local    the same for the worst stretch, beyond what the worst of that many stretches shows by chance
    worst    the same for the worst single position
    score    log likelihood
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
        n = len(replicas)
        floor = storage + FLOAT_FLOOR**2
        r = np.maximum(np.nan_to_num([squares(replica, predicted) for replica in replicas]), FLOAT_FLOOR**2)
        self.noise = smooth(r.mean(axis=0))
        self.expected = self.noise + floor
        stored = r + floor
        if storage.any():
            replicas = _stored(replicas, storage, shared)
            stored = np.array([squares(replica, predicted) for replica in replicas])
        rest = [smooth((r.sum(axis=0) - r[k]) / (n - 1)) + floor for k in range(n)]
        usual = np.median(stored, axis=1)
        # above what stored replicas reach, an engine has float noise of its own
        self.stored = float(usual.mean() + LIMIT * usual.std(ddof=1)) if storage.any() else 0.0
        self.own = np.array([_half_log(np.maximum(stored[k], floor) / rest[k]) for k in range(n)])
        self.usual = Scatter(self.own)
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
                expected = np.maximum(smooth(scale) * n / (n - 2), floor)
                own.append(_half_log(np.maximum(squares(every[k], centre), floor) / expected))
            self.usual_mean = Scatter(np.array(own))

    def fit(self, values: np.ndarray, predicted: np.ndarray | None = None) -> Fit:
        """Hold the observed values (R, K) against the prediction, or another one in the same rounding set."""
        r = squares(values, self.predicted if predicted is None else predicted)
        level = _half_log((r + 1e-300) / self.expected)
        known = np.isfinite(level)
        bare = np.sort(level[known])
        core = float(bare[: max(1, len(bare) // 2)].mean()) if len(bare) else 0.0
        shift, expected = 0.0, self.expected
        if not self.coarse and known.any():
            shift = self._shift(r, known)
            expected = np.exp(2 * shift) * (self.expected - self.storage) + self.storage
            level = _half_log((r + 1e-300) / expected)
        z, local, worst = self.usual.misfit(level)
        if self.coarse and predicted is None and self.mean is not None:
            other = self.usual_mean.misfit(_half_log((squares(values, self.mean) + 1e-300) / self.around))
            z, local, worst = max(z, other[0]), max(local, other[1]), max(worst, other[2])
        q = np.exp(2 * np.clip(level[known], -20, 20))
        tail = 0.5 * (TAIL + 1) * np.log((TAIL + q) / (TAIL + 1))
        # a row that is not predicted is neither explained nor contradicted: it counts like one of unrelated engines
        score = -WEIGHT * float(np.sum(0.5 * np.log(expected[known]) + tail) + (~known).sum())
        rms = float(np.sqrt(np.mean(r[known]))) if known.any() else float("nan")
        return Fit(level, shift, z, local, worst, score, rms, core)

    def _shift(self, r: np.ndarray, known: np.ndarray) -> float:
        """Log of the engine's float noise in units of ours: one factor everywhere. Storage rounding is known."""
        if np.median(r[known]) < self.stored:
            return 0.0
        bare = _half_log(np.maximum(r - self.storage, 1e-300) / (self.expected - self.storage))
        return float(np.clip(np.median(bare[known]), 0.0, FOREIGN))

    def level(self, a: np.ndarray, b: np.ndarray) -> float:
        """Mean l of two predictions (R, K), as engine and prediction of each other."""
        return float(np.nanmean(_half_log((squares(a, b) + 1e-300) / self.expected)))


def _stored(replicas: Sequence[np.ndarray], storage: np.ndarray, shared: np.ndarray | None) -> list[np.ndarray]:
    """Replicas as they come back from storage."""
    rng = np.random.default_rng(11)
    common = np.zeros_like(storage) if shared is None else np.minimum(shared, storage)
    step, offset = np.sqrt(storage - common)[:, None], np.sqrt(common)[:, None]
    return [
        each + step * rng.standard_normal(each.shape) + offset * rng.standard_normal((len(each), 1))
        for each in replicas
    ]


def _half_log(ratio: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return 0.5 * np.log(ratio)


class Scatter:
    """Distribution of the levels of right engines, from those of replicas ``own`` (n, R)."""

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

    def whole(self, known: np.ndarray | None = None) -> tuple[float, float]:
        """Mean and standard deviation of the mean level over the positions ``known``, for one more engine."""
        own = self.own if known is None else self.own[:, known]
        means = own.mean(axis=1)
        # positions are not independent; with few replicas their scatter is not well known: never less than if they were
        spread = max(float(means.std(ddof=1)), self.single / np.sqrt(own.shape[1]), 0.01)
        return float(means.mean()), spread * self.more

    def misfit(self, level: np.ndarray) -> tuple[float, float, float]:
        """(whole, stretch, position): standard deviations by which ``level`` (R,) lies above what replicas show."""
        known = np.isfinite(level)
        if not known.any():
            return 0.0, 0.0, 0.0
        mean, spread = self.whole(known)
        z = (float(level[known].mean()) - mean) / spread
        filled, local = np.where(known, level, self.median), 0.0
        for length, usual, width in self.lengths:
            here = (stretches(filled, length, length // 2) - usual) / (width * self.more)
            # the largest of n normal variables is sqrt(2 ln n)
            local = max(local, float(here.max()) - float(np.sqrt(2 * np.log(len(here)))))
        most = self.own[:, known].max(axis=1)
        # largest values scatter like a Gumbel variable, whose tail is one standard deviation longer
        scale = max(float(most.std(ddof=1)), self.single / 2)
        worst = (float(level[known].max()) - float(most.mean())) / (scale * self.more) - 1.0
        return float(z), float(local), float(max(worst, 0.0))


def stretches(level: np.ndarray, length: int, step: int) -> np.ndarray:
    """Means of stretches of ``length`` positions that begin every ``step``."""
    total = np.concatenate(([0.0], np.cumsum(level)))
    start = np.arange(0, len(level) - length + 1, step)
    return (total[start + length] - total[start]) / length


def projection(values: np.ndarray, base: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Place of the observed values on the line from one prediction (0) to another (1); all (R, K), ``weight`` (R,).
    NaN if the two are the same."""
    with np.errstate(invalid="ignore"):
        d, y = target - base, values - base
    use = np.isfinite(d) & np.isfinite(y)
    d, y = np.where(use, d, 0.0), np.where(use, y, 0.0)
    w = weight[:, None]
    length = float((w * d * d).sum())
    return float((w * d * y).sum()) / length if length > 0 else float("nan")
