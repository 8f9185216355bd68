"""The likelihood: how far a prediction is from an observation, relative to how far a correct engine would be from it.

    r(t)      mean square difference of log probabilities after token t between the engine and a prediction
    e(t)      expected r(t) of a correct engine: measured on replicas (our own runs with float noise), plus the mean
              square of storage rounding (``storage``)
    l(t)      level, ln sqrt(r / e): 0 for a typical correct engine, 1 if the difference is 2.72 times as large

In rounding sets that quantize, noise moves values to the next quantization step; then e is large and r heavy-tailed. So
all statistics are of l, and their distribution is measured on replicas, each compared with the others. ``Reference``
holds one prediction with its replicas. ``Fit.score`` is the log likelihood; ``Fit.misfit`` is the number of standard
deviations by which l is too large for a correct engine: as a mean over all positions, in some stretch of consecutive
positions, or at one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..observation import Observation
from .signatures import REPLICAS

LIMIT = 3.0
"""Misfit from which a candidate does not explain the data. An unknown mistake (1 to 1000 standard deviations,
log-uniform, a quarter of all engines) becomes likelier than a correct engine (Student, 7 degrees of freedom) at 2.9."""
FLOAT_FLOOR = 1e-7
"""Smallest distance of two engines in nats: one float32 unit in the last place of a log probability near -1."""
FOREIGN = np.log(30.0)
"""Log of the largest float noise that another engine may have, in units of ours: three times the largest measured, 10
(fast exponentials, float32 angles at long contexts; Hugging Face and ds4's C code, roundings off, have 2 to 10)."""
NOTHING = 1e3
"""Square root of r for a row that is not comparable: above every log probability, so that no prediction fits."""
WEIGHT = 0.25
"""Weight of a position in a likelihood, relative to an independent observation: 1 / (1 + 2 sum of autocorrelations) of
l on replicas, 0.04 to 1 in the 13 sets, geometric mean 0.23 (golden model tiny, 200 positions)."""
TAIL = 4.0
"""Degrees of freedom of the likelihood's Student tail. With 4, r / e exceeds 21 once in a hundred positions; on
replicas of the 13 sets the value exceeded that often is 3 to 71 (golden model tiny)."""
DRIFT = 0.2
"""Standard deviation along a prompt of the level of another engine that computes in float32; replicas lack it, as their
noise is ours everywhere. Measured on 7 models: Hugging Face as it is, with sums in blocks of 8 and of 64, with iterated
rope angles, with exponentials off by 1e-6, and in decode; ds4's C code, roundings off (docs/reference/vectors.md)."""
SHORTEST = 8
"""Number of consecutive positions in the shortest stretch that is tested; shorter ones reveal no more than single
positions."""


def log_student(z: float, dof: int = REPLICAS - 1) -> float:
    """Return the log density of Student's t at ``z``, up to a constant, with ``dof`` degrees of freedom."""
    return float(-0.5 * (dof + 1) * np.log1p(z * z / dof))


def limit_of(count: int, dof: int = REPLICAS - 1) -> float:
    """Return the threshold, in standard deviations, for each of ``count`` statistics from replicas that must all pass.

    With it, a correct engine fails any of them as rarely as a single one with the threshold ``LIMIT``. The tail of
    Student's distribution is approximated by (1 + z^2 / dof)^(-dof / 2).
    """
    return float(np.sqrt(dof * ((1 + LIMIT**2 / dof) * count ** (2 / dof) - 1)))


def seen_through(seen: Observation, logprobs: np.ndarray) -> np.ndarray:
    """Return a prediction, ``logprobs`` (T, V), at the observed rows and tokens: float32 (R, V) or (R, K).

    Observed tokens that are not predicted are NaN.
    """
    rows = logprobs[seen.rows]
    if seen.support is None:
        return rows if rows.shape[1] == seen.logprobs.shape[1] else np.full(seen.logprobs.shape, np.nan, np.float32)
    inside = (seen.support >= 0) & (seen.support < rows.shape[1])
    at = np.where(inside, seen.support, 0)
    return np.where(inside, np.take_along_axis(rows, at, axis=1), np.float32(np.nan))


def squares(values: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return r (R,), the mean square difference of observed ``values`` and a prediction (R, K); NaN: no prediction.

    Equal infinities (masked tokens) count as equal. A row in which more than a tenth of the differences are not finite
    gets ``NOTHING`` squared.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.subtract(values, predicted, dtype=np.float64)
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


def tail_cost(r: np.ndarray, expected: np.ndarray) -> float:
    """Return the negative log likelihood, up to a constant, of mean square differences ``r`` (R,) if a correct engine
    has ``expected`` (R,); rows where ``r`` is unknown (NaN) count as if it were as expected."""
    q = np.clip(np.nan_to_num(r / expected, nan=1.0), np.exp(-40), np.exp(40))
    tail = 0.5 * (TAIL + 1) * np.log((TAIL + q) / (TAIL + 1))
    return WEIGHT * float(np.sum(0.5 * np.log(expected) + tail))


def smooth(e: np.ndarray, reach: int = 4) -> np.ndarray:
    """Return the moving average (R,) of ``e`` over 2 ``reach`` + 1 positions, fewer at the ends."""
    if len(e) <= 1:
        return e
    total = np.concatenate(([0.0], np.cumsum(e)))
    at = np.arange(len(e))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(e))
    return (total[high] - total[low]) / (high - low)


@dataclass(frozen=True)
class Fit:
    """Measures of how well one prediction fits the observation.

    level    l (R,) as defined at the top of this module, after subtracting ``shift``; NaN where nothing is predicted
    shift    log of (the engine's float noise / ours); 0 in rounding sets that quantize
    z        standard deviations by which the mean level is too large
    local    standard deviations by which the worst stretch is too large, beyond the worst of as many stretches by
             chance
    worst    standard deviations by which the worst single position is too large, beyond the worst by chance
    score    log likelihood
    rms      square root of the mean of r, nats
    r        mean square differences (R,) as ``squares`` returns them
    core     mean l, without subtracting ``shift``, over the better half of the positions, which a single top-k decided
             otherwise does not affect
    """

    level: np.ndarray
    shift: float
    z: float
    local: float
    worst: float
    score: float
    rms: float
    core: float
    r: np.ndarray

    @property
    def misfit(self) -> float:
        """Return the largest of ``z``, ``local`` and ``worst``."""
        return max(self.z, self.local, self.worst)


class Reference:
    """A prediction and its noisy replicas, at the rows and tokens of one observation.

    predicted  (R, K) log probabilities of the noiseless run
    replicas   log probabilities of runs with float noise, each (R, K)
    storage    (R,) mean square of the rounding with which the observation was stored
    coarse     whether the rounding set quantizes, so that noise moves values to other quantization steps
    shared     (R,) the part of ``storage`` that is one offset for a whole row
    drift      standard deviation of other engines' levels in addition to that of replicas, in sets that quantize
    """

    def __init__(
        self, predicted: np.ndarray, replicas: Sequence[np.ndarray], storage: np.ndarray, coarse: bool,
        shared: np.ndarray | None = None, drift: float = 0.0,
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
        # differences above what replicas reach after storage are float noise of the other engine
        self.stored = float(usual.mean() + LIMIT * usual.std(ddof=1)) if storage.any() else 0.0
        self.own = np.array([_half_log(np.maximum(stored[k], floor) / rest[k]) for k in range(n)])
        # only float noise drifts along the prompt, storage rounding does not
        self.usual = Scatter(self.own, drift if coarse else DRIFT * float(np.mean(self.noise / self.expected)))
        self.mean: np.ndarray | None = None
        if coarse:  # in the mean of many runs flips average out, so distances from it are less noisy
            every = np.array(replicas)
            self.mean = every.mean(axis=0, dtype=np.float64).astype(np.float32)
            spread = np.array([squares(each, self.mean) for each in every])
            # the replicas include storage rounding already; the factor is for the engine as one more run beside n
            self.around = np.maximum(smooth(spread.mean(axis=0)) * (n + 1) / (n - 1), floor)
            own = []
            for k in range(n):
                others = [each for i, each in enumerate(every) if i != k]
                centre = np.asarray(np.mean(others, axis=0, dtype=np.float64))
                scale = np.array([squares(each, centre) for each in others]).mean(axis=0)
                expected = np.maximum(smooth(scale) * n / (n - 2), floor)
                own.append(_half_log(np.maximum(squares(every[k], centre), floor) / expected))
            self.usual_mean = Scatter(np.array(own), drift)

    def fit(self, values: np.ndarray, predicted: np.ndarray | None = None) -> Fit:
        """Measure how well ``predicted`` (R, K) fits ``values`` (R, K); None: the prediction of this reference."""
        r = squares(values, self.predicted if predicted is None else predicted)
        level = _half_log((r + 1e-300) / self.expected)
        known = np.isfinite(level)
        bare = np.sort(level[known])
        core = float(bare[: max(1, len(bare) // 2)].mean()) if len(bare) else 0.0
        shift, expected = 0.0, self.expected
        if not self.coarse and known.any():
            shift = self._shift(r, known)
            expected = self.expected_at(shift)
            level = _half_log((r + 1e-300) / expected)
        z, local, worst = self.usual.misfit(level)
        if self.coarse and predicted is None and self.mean is not None:
            other = self.usual_mean.misfit(_half_log((squares(values, self.mean) + 1e-300) / self.around))
            z, local, worst = max(z, other[0]), max(local, other[1]), max(worst, other[2])
        # a row without a prediction is neither explained nor contradicted: it costs about as much as an unrelated one
        score = -tail_cost(r[known], expected[known]) - WEIGHT * float((~known).sum())
        rms = float(np.sqrt(np.mean(r[known]))) if known.any() else float("nan")
        return Fit(level, shift, z, local, worst, score, rms, core, r)

    def expected_at(self, shift: float) -> np.ndarray:
        """Return e (R,) of a correct engine with exp(``shift``) times our float noise and the same storage rounding."""
        return np.exp(2 * shift) * (self.expected - self.storage) + self.storage

    def _shift(self, r: np.ndarray, known: np.ndarray) -> float:
        """Estimate log of (the engine's float noise / ours), one value for all positions; storage rounding is known."""
        if np.median(r[known]) < self.stored:
            return 0.0
        bare = _half_log(np.maximum(r - self.storage, 1e-300) / (self.expected - self.storage))
        return float(np.clip(np.median(bare[known]), 0.0, FOREIGN))

    def level(self, a: np.ndarray, b: np.ndarray) -> float:
        """Return the mean level (ln sqrt(r / e)) of one prediction (R, K) as if the other were the engine's numbers."""
        return float(np.nanmean(_half_log((squares(a, b) + 1e-300) / self.expected)))


def _stored(replicas: Sequence[np.ndarray], storage: np.ndarray, shared: np.ndarray | None) -> list[np.ndarray]:
    """Replicas with simulated storage rounding; ``storage``, ``shared``: its mean squares (R,), as for Reference."""
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
    """Distribution of the levels of correct engines, estimated from the levels ``own`` (n, R) of n replicas.

    ``drift``: standard deviation of other engines' levels in addition to that of replicas.
    """

    def __init__(self, own: np.ndarray, drift: float = 0.0):
        self.own, self.drift = own, drift
        n, count = own.shape
        self.more = float(np.sqrt(1 + 1 / n))
        self.single = float(own.std()) + 1e-3
        self.median = float(np.median(own))
        self.lengths: list[tuple[int, np.ndarray, float]] = []
        length = SHORTEST
        while length <= count // 2:
            usual = np.array([stretches(row, length, length // 2) for row in own])
            width = max(float(np.sqrt(usual.var(axis=0, ddof=1).mean())), self.single / np.sqrt(length), 0.01)
            self.lengths.append((length, usual.mean(axis=0), width * self.more))
            length *= 2

    def whole(self, known: np.ndarray | None = None) -> tuple[float, float]:
        """Return mean and standard deviation of a correct engine's mean level over the positions ``known`` (mask)."""
        own = self.own if known is None else self.own[:, known]
        means = own.mean(axis=1)
        # positions are not independent; few replicas show that badly: assume at least the spread of independent ones
        spread = max(float(means.std(ddof=1)), self.single / np.sqrt(own.shape[1]), 0.01)
        return float(means.mean()), float(np.hypot(spread * self.more, self.drift))

    def misfit(self, level: np.ndarray) -> tuple[float, float, float]:
        """Return by how many standard deviations ``level`` (R,) is too large: (mean, worst stretch, worst position)."""
        known = np.isfinite(level)
        if not known.any():
            return 0.0, 0.0, 0.0
        mean, spread = self.whole(known)
        z = (float(level[known].mean()) - mean) / spread
        filled, local = np.where(known, level, self.median), 0.0
        for length, usual, width in self.lengths:
            over = stretches(filled, length, length // 2) - usual
            # the largest of n normal variables is sqrt(2 ln n)
            chance = width * float(np.sqrt(2 * np.log(len(over))))
            local = max(local, (float(over.max()) - chance) / float(np.hypot(width, self.drift)))
        most = self.own[:, known].max(axis=1)
        # largest values scatter like a Gumbel variable, whose tail is one standard deviation longer
        scale = max(float(most.std(ddof=1)), self.single / 2) * self.more
        worst = (float(level[known].max()) - float(most.mean()) - scale) / float(np.hypot(scale, self.drift))
        return float(z), float(local), float(max(worst, 0.0))


def stretches(level: np.ndarray, length: int, step: int) -> np.ndarray:
    """Return the means of ``level`` over stretches of ``length`` positions that start every ``step`` positions."""
    total = np.concatenate(([0.0], np.cumsum(level)))
    start = np.arange(0, len(level) - length + 1, step)
    return (total[start + length] - total[start]) / length


def projection(values: np.ndarray, base: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Project ``values`` onto the line from ``base`` (0) to ``target`` (1); all are (R, K), ``weight`` of rows (R,).

    NaN if ``base`` and ``target`` are equal.
    """
    with np.errstate(invalid="ignore"):
        d, y = np.subtract(target, base, dtype=np.float64), np.subtract(values, base, dtype=np.float64)
    use = np.isfinite(d) & np.isfinite(y)
    d, y = np.where(use, d, 0.0), np.where(use, y, 0.0)
    w = weight[:, None]
    length = float((w * d * d).sum())
    return float((w * d * y).sum()) / length if length > 0 else float("nan")
