"""Intervals and tests: numbers in, numbers out. What is compared with what is decided in ``compare``.

All are about a difference d of B against A, paired where the data is. Small samples get Student's t, which is exact
for normal errors; from ``BCA_FROM`` values on the bias-corrected and accelerated bootstrap (Efron 1987) follows the
shape of the data. (Below that BCa is too narrow: nominal 95 % covers about 90 % at n = 10.) Bootstraps are seeded: the
same data gives the same interval. scipy does the statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

BCA_FROM = 20
RESAMPLES = 4999
SEED = 20261121
POWER = 0.8
TRIM = 0.2
DISCORDANT_FROM = 10


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    n           independent values behind it
    p           two-sided p-value of "no difference" (None: not computed)
    detectable  the smallest difference that would have been found in 80 % of such experiments (None: unknown)
    """

    estimate: float
    low: float
    high: float
    n: int
    method: str
    p: float | None = None
    detectable: float | None = None

    def scaled(self, factor: float) -> Interval:
        """In other units."""
        detectable = None if self.detectable is None else self.detectable * factor
        values = (self.estimate * factor, self.low * factor, self.high * factor)
        return Interval(*values, self.n, self.method, self.p, detectable)


def unknown(estimate: float, n: int) -> Interval:
    """An estimate whose spread cannot be known."""
    return Interval(estimate, -math.inf, math.inf, n, "too few values")


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean of independent values (n,)."""
    d = np.asarray(values, np.float64)
    n, mean = len(d), float(d.mean()) if len(d) else math.nan
    if n < 2:
        return unknown(mean, n)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    if error <= 1e-15 * max(1.0, abs(mean)):
        return Interval(mean, mean, mean, n, "no spread", 1.0 if mean == 0 else 0.0, 0.0)
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    if n >= BCA_FROM:
        low, high = _bca((d,), _mean, confidence)
        return Interval(mean, low, high, n, "BCa bootstrap", p, _detectable(error, n - 1, confidence))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Interval(mean, mean - half, mean + half, n, "Student t", p, _detectable(error, n - 1, confidence))


def rounds_interval(ratios: np.ndarray, confidence: float = 0.95) -> Interval:
    """The mean of ``ratios`` (rounds, depths), NaN where a cell is missing; rounds are the independent values.

    Within a round depths count as one: the mean without the 20 % farthest out on either side, since a busy moment of
    the machine is to cost a cell and not the comparison.
    """
    centres = [centre(row[np.isfinite(row)]) for row in ratios if np.isfinite(row).any()]
    return mean_interval(centres, confidence)


def centre(values: np.ndarray) -> float:
    """The mean without the 20 % farthest out on either side."""
    return float(stats.trim_mean(values, TRIM))


def welch_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """mean(b) - mean(a) of two independent samples with variances of their own."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    difference, n = float(b.mean() - a.mean()), min(len(a), len(b))
    if n < 2:
        return unknown(difference, n)
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    error = math.sqrt(sum(parts))
    if error <= 1e-15 * max(1.0, abs(difference)):
        return Interval(difference, difference, difference, n, "no spread", float(difference == 0), 0.0)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(difference) / error, freedom))
    low, high = difference - half, difference + half
    return Interval(difference, low, high, n, "Welch t", p, _detectable(error, freedom, confidence))


def series_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean of values along an axis (one a depth) around a straight trend, which is no noise but how the
    difference depends on depth. What is left resembles its neighbours: n counts as n (1 - r) / (1 + r) values, r the
    correlation of neighbours."""
    d = np.asarray(values, np.float64)
    n, mean = len(d), float(d.mean()) if len(d) else math.nan
    if n < 5:
        return unknown(mean, n)
    x = np.arange(n) - (n - 1) / 2
    rest = d - mean - x * float(x @ d) / float(x @ x)
    square = float(rest @ rest)
    if square <= 1e-30:
        return Interval(mean, mean, mean, n, "no spread", float(mean == 0), 0.0)
    # Two constants were fitted, and r is biased by that: in white noise it is -2/n on average.
    r = min(max((float(rest[1:] @ rest[:-1]) / square + 2 / n) * n / (n - 2), 0.0), 0.9)
    effective = max(2.0, n * (1 - r) / (1 + r))
    # A smooth rest leaves two or three values; a t with one degree of freedom would then say nothing at all.
    freedom = max(4.0, effective - 2)
    error = math.sqrt(square / (n - 2) / effective)
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, freedom))
    method = f"t around a trend, n counts as {effective:.0f}"
    return Interval(mean, mean - half, mean + half, n, method, p, _detectable(error, freedom, confidence))


def weighted_interval(totals: ArrayLike, weights: ArrayLike, confidence: float = 0.95) -> Interval:
    """sum(totals) / sum(weights) over independent clusters, as NLL differences per token over texts."""
    totals, weights = np.asarray(totals, np.float64), np.asarray(weights, np.float64)
    n, estimate = len(totals), float(totals.sum() / weights.sum())
    if n < 2:
        return unknown(estimate, n)
    residual = totals - estimate * weights
    error = math.sqrt(n / (n - 1) * float(residual @ residual)) / float(weights.sum())
    if error <= 1e-15 * max(1.0, abs(estimate)):
        return Interval(estimate, estimate, estimate, n, "no spread", float(estimate == 0), 0.0)
    p = wilcoxon(totals / weights)
    detectable = _detectable(error, n - 1, confidence)
    if n >= BCA_FROM:
        low, high = _bca((totals, weights), _ratio, confidence)
        return Interval(estimate, low, high, n, "BCa bootstrap over texts", p, detectable)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Interval(estimate, estimate - half, estimate + half, n, "Student t over texts", p, detectable)


def graded_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """mean(b) - mean(a) for the same questions (n,), scores 0 to 1; one score a question (epochs averaged before).

    The p-value is McNemar's exact one for right-or-wrong scores, a sign-flip permutation test for others. Below
    ``DISCORDANT_FROM`` questions that changed, the interval is Agresti and Min's (2005): Wald with half a question
    added to each cell of the table; a bootstrap would know nothing of changes that might have happened.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    d, n = b - a, len(a)
    estimate = float(d.mean()) if n else math.nan
    if n < 2:
        return unknown(estimate, n)
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    changed = int(np.count_nonzero(d))
    p = mcnemar(a, b) if binary else sign_flip(d)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    if changed >= DISCORDANT_FROM and n >= BCA_FROM:
        low, high = _bca((d,), _mean, confidence)
        return Interval(estimate, low, high, n, "paired BCa bootstrap", p, _detectable(error, n - 1, confidence))
    gained, lost, total = float(d[d > 0].sum()) + 0.5, -float(d[d < 0].sum()) + 0.5, n + 2
    centre = (gained - lost) / total
    error = math.sqrt(gained + lost - (gained - lost) ** 2 / total) / total
    half = float(stats.norm.ppf((1 + confidence) / 2)) * error
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Interval(estimate, low, high, n, "Agresti-Min", p, _detectable(error, math.inf, confidence))


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided p of as many changes one way among all changes (binomial with 1/2)."""
    a, b = np.asarray(a), np.asarray(b)
    gained, lost = int(np.count_nonzero(b > a)), int(np.count_nonzero(b < a))
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def sign_flip(differences: ArrayLike) -> float:
    """Permutation p of a mean this far from zero if signs were chance."""
    d = np.asarray(differences, np.float64)
    d = d[d != 0]
    if not len(d):
        return 1.0
    done = stats.permutation_test(
        (d,), _mean, permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(SEED)
    )
    return float(done.pvalue)


def wilcoxon(differences: ArrayLike) -> float:
    """Signed-rank p, 1.0 if nothing differs."""
    d = np.asarray(differences, np.float64)
    return float(stats.wilcoxon(d).pvalue) if np.count_nonzero(d) else 1.0


def wilson(right: float, n: int, confidence: float = 0.95) -> Interval:
    """A share of n with Wilson's interval."""
    z = float(stats.norm.ppf((1 + confidence) / 2))
    share = right / n
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Interval(share, max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale), n, "Wilson")


def _detectable(error: float, freedom: float, confidence: float) -> float:
    """The difference found with probability ``POWER``, given the standard error."""
    if math.isinf(freedom):
        return float(stats.norm.ppf((1 + confidence) / 2) + stats.norm.ppf(POWER)) * error
    return float(stats.t.ppf((1 + confidence) / 2, freedom) + stats.t.ppf(POWER, freedom)) * error


def _bca(data: tuple[np.ndarray, ...], statistic: object, confidence: float) -> tuple[float, float]:
    done = stats.bootstrap(
        data, statistic, paired=len(data) > 1, vectorized=True, confidence_level=confidence, method="BCa",
        n_resamples=RESAMPLES, rng=np.random.default_rng(SEED),
    )  # fmt: skip
    return float(done.confidence_interval.low), float(done.confidence_interval.high)


def _mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.mean(values, axis=axis)


def _ratio(totals: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return totals.sum(axis=axis) / weights.sum(axis=axis)
