"""Confidence intervals and tests on plain numbers.

The coverage of every interval (how often it contains the true value) was simulated on the kind of data it is used for,
at 3 to 100 values: ``python -m benchmarks.coverage`` prints the table, docs/reference/reports.md discusses it. Where an
interval would not cover as claimed, ``unknown`` is returned: for fewer than ``LEAST`` values (``LEAST_GRADED``
questions), and for values without spread, which show the resolution of a clock and not the uncertainty. Bootstrap
intervals are not used: of 20 to 50 values, those of the percentile and BCa methods cover 87 to 94 % where 95 % are
claimed. Distribution functions come from scipy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

LEAST, LEAST_GRADED = 3, 20
EXACT_TO = 100
RESAMPLES = 4999
FLIPS = 1000
LEAST_P = 2 / (RESAMPLES + 1)
"""Smallest possible p-value of a permutation test: no random permutation was as extreme as the data."""
SEED = 20261121
POWER = 0.8
TRIM = 0.2
BETTER, WORSE, SAME, UNCLEAR, REFUSED = "better", "worse", "same", "unclear", "refused"


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    n           number of independent values
    method      name of the method, or why the interval is unknown
    p           two-sided p-value of "no difference" (None: not computed)
    detectable  the smallest true difference that 80 % of such experiments would detect (None: unknown)
    """

    estimate: float
    low: float
    high: float
    n: int
    method: str
    p: float | None = None
    detectable: float | None = None

    @property
    def known(self) -> bool:
        """Return whether there is an interval, and not only an estimate (see ``unknown``)."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def scaled(self, factor: float) -> Interval:
        """Return the interval with all its values multiplied by ``factor``, to convert units."""
        detectable = None if self.detectable is None else self.detectable * factor
        values = (self.estimate * factor, self.low * factor, self.high * factor)
        return Interval(*values, self.n, self.method, self.p, detectable)


def judge(i: Interval, margin: float = 1.0, floor: float = 0.0) -> str:
    """Return the verdict on a difference: "better", "worse", "same", "unclear" or "refused".

    better, worse   the whole interval is above ``floor``, or below -``floor``, and the estimate is at least ``margin``
                    in size
    same            the whole interval is within plus or minus ``margin``
    refused         there is no estimate (NaN)
    unclear         all other cases

    ``i``, ``margin`` and ``floor`` have the same unit; a positive difference is an improvement.
    """
    if math.isnan(i.estimate):
        return REFUSED
    if -margin <= i.low and i.high <= margin:
        return SAME
    if abs(i.estimate) >= margin:
        if i.low > floor:
            return BETTER
        if i.high < -floor:
            return WORSE
    return UNCLEAR


def per_cent(i: Interval) -> Interval:
    """Convert an interval of the logarithm of a ratio to one of the change in per cent."""

    def change(x: float) -> float:
        return math.expm1(min(x, 700.0)) * 100

    detectable = None if i.detectable is None else change(i.detectable)
    low, high = (change(i.low), change(i.high)) if i.known else (i.low, i.high)
    return Interval(change(i.estimate), low, high, i.n, i.method, i.p, detectable)


def unknown(estimate: float, n: int, why: str = "too few values") -> Interval:
    """Return an estimate from ``n`` values without an interval; ``why`` is the reason."""
    return Interval(estimate, -math.inf, math.inf, n, why)


def centre_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of the centre of independent values (n,).

    Of few values, the centre is their mean, with Student's t interval. From 6 values (at 95 %; 8 at 99 %), it is the
    Hodges-Lehmann estimate (the median of all pairwise means) with Wilcoxon's exact interval. That is as narrow as
    Student's for normal errors, narrower if there are outliers, and correct for skewed values, where Student's is not.
    If fewer than half of the values are distinct, they were rounded, and Student's t is used, because methods based on
    ranks suffer from ties.
    """
    d = np.asarray(values, np.float64)
    n, mean = len(d), float(d.mean()) if len(d) else math.nan
    if n < LEAST:
        return unknown(mean, n)
    if _flat(d):
        return unknown(mean, n, "no spread")
    a, rounded = (1 - confidence) / 2, 2 * len(np.unique(d)) < n
    if rounded or 0.5**n > a:
        error = float(d.std(ddof=1)) / math.sqrt(n)
        return _t(mean, error, n - 1, confidence, n, "Student t")
    one, other = np.triu_indices(n)
    means = np.sort((d[one] + d[other]) / 2)
    rank = _rank_at(n, a)
    low, high = (float(np.interp(x, np.arange(len(means)), means)) for x in (rank, len(means) - 1 - rank))
    error = (high - low) / 2 / float(special.stdtrit(n - 1, 1 - a))
    above = int(np.count_nonzero(means > 0))  # Wilcoxon's statistic
    p = min(1.0, 2 * float(_signed_ranks(n)[min(above, len(means) - above)]))
    return Interval(float(np.median(means)), low, high, n, "Hodges-Lehmann", p, _detectable(error, n - 1, confidence))


def _rank_at(n: int, a: float) -> float:
    """Return the (fractional) rank below which a share ``a`` of Wilcoxon's distribution for ``n`` values lies.

    The pairwise mean of this rank, in sorted order, is the lower end of the interval; it is below the true centre with
    probability 1 - ``a``.
    """
    below = _signed_ranks(n)
    return float(np.interp(a, below, np.arange(len(below))))


@cache
def _signed_ranks(n: int) -> np.ndarray:
    """Return the cumulative distribution of Wilcoxon's signed-rank statistic for ``n`` values, (n(n+1)/2 + 1,).

    It is exact up to ``EXACT_TO`` values, a normal approximation above.
    """
    size = n * (n + 1) // 2 + 1
    if n > EXACT_TO:
        return special.ndtr((np.arange(size) + 0.5 - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    sums = np.ones(1)
    for rank in range(1, n + 1):
        sums = (np.pad(sums, (0, rank)) + np.pad(sums, (rank, 0))) / 2
    return np.cumsum(sums)


def rounds_interval(ratios: np.ndarray, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of the centre of log ratios (rounds, depths), NaN where one is missing.

    Rounds, the repetitions of the measurement, are the independent values. Each is reduced to its trimmed mean over
    depths (``trimmed``), so that a moment in which the machine was busy spoils one value and not the comparison.
    """
    centres = [trimmed(row[np.isfinite(row)]) for row in ratios if np.isfinite(row).any()]
    return centre_interval(centres, confidence)


def trimmed(values: np.ndarray) -> float:
    """Return the mean of ``values`` (n,) without the largest and the smallest 20 % of them."""
    cut = int(TRIM * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


def welch_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Welch's confidence interval of mean(b) - mean(a), for independent samples with unequal variances."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    difference, n = float(b.mean() - a.mean()), min(len(a), len(b))
    if n < LEAST:
        return unknown(difference, n)
    if _flat(a) or _flat(b):
        return unknown(difference, n, "no spread")
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    return _t(difference, error, freedom, confidence, n, "Welch t")


def weighted_interval(totals: ArrayLike, weights: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of sum(totals) / sum(weights) over independent clusters.

    An example is the negative log-likelihood per token over texts: ``totals`` has the sum over each text, ``weights``
    its number of tokens.

    The standard error is the jackknife's, leaving out each cluster once. Clusters of unequal weight carry less
    information, so the degrees of freedom are computed as if n were the mean of n and of sum(w)^2 / sum(w^2). If every
    total is zero, the interval is zero, too: engines that agree to the last bit do not do so by chance.
    """
    totals, weights = np.asarray(totals, np.float64), np.asarray(weights, np.float64)
    n, whole = len(totals), float(weights.sum())
    estimate = float(totals.sum()) / whole
    if not totals.any():
        return Interval(0.0, 0.0, 0.0, n, "identical", 1.0, 0.0)
    if n < LEAST:
        return unknown(estimate, n)
    if _flat(totals / weights):
        return unknown(estimate, n, "no spread")
    residual = (totals - estimate * weights) / (whole - weights)
    error = math.sqrt((n - 1) / n * float(residual @ residual))
    freedom = (n + whole**2 / float(weights @ weights)) / 2 - 1
    return _t(estimate, error, freedom, confidence, n, "jackknife over texts")


def graded_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of mean(b) - mean(a), for scores (n,) from 0 to 1 on the same questions.

    The interval is that of ``change_interval``, the p-value that of ``graded_p``.
    """
    interval = change_interval(np.asarray(b, np.float64) - np.asarray(a, np.float64), confidence)
    return replace(interval, p=graded_p(a, b)) if interval.known else interval


def change_interval(d: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the confidence interval of the mean of the score changes ``d`` (n,), one per question, each from -1 to 1.

    It is Agresti and Min's interval (2005): Wald's, after adding half a question to each of the four cells (right or
    wrong before, right or wrong after), to allow for changes that were not observed. In two of these cells the score
    changes. Such a half question counts with the largest observed change, or with 1 if there was none; the mean change
    would be too small if a few questions change much and many a little.
    """
    d = np.asarray(d, np.float64)
    n = len(d)
    estimate = float(d.mean()) if n else math.nan
    if n < LEAST_GRADED:
        return unknown(estimate, n)
    total = n + 2
    middle, square = float(d.sum()) / total, float(d @ d) + (float(np.square(d).max()) if d.any() else 1.0)
    error = math.sqrt(square - total * middle**2) / total
    half = float(special.ndtri((1 + confidence) / 2)) * error
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return Interval(estimate, low, high, n, "Agresti-Min", detectable=_detectable_change(d, confidence))


def graded_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sided p-value of "no difference" between the scores ``a`` and ``b`` (n,) on the same questions.

    For right-or-wrong scores it is McNemar's exact one, for others that of a permutation test (``sign_flip``).
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    return mcnemar(a, b) if binary else sign_flip(b - a)


def share_interval(scores: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Wilson's confidence interval of the mean of scores (n,) from 0 to 1.

    Scores between right and wrong vary less than right-or-wrong ones, so they count as correspondingly more questions.
    The variance is computed as if there were one more question with the variance of a right-or-wrong score, so that it
    is never zero.
    """
    d = np.asarray(scores, np.float64)
    n, share = len(d), float(d.mean())
    between = share * (1 - share)
    weight = n * between * (n + 1) / (n * float(d.var()) + between) if between > 0 else n
    return replace(wilson(share * weight, weight, confidence), n=n)


def wilson(right: float, n: float, confidence: float = 0.95) -> Interval:
    """Return Wilson's confidence interval of the share ``right / n``; neither needs to be a whole number."""
    z = float(special.ndtri((1 + confidence) / 2))
    share = right / n
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Interval(share, max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale), int(n), "Wilson")


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Return McNemar's exact two-sided p-value for right-or-wrong scores ``a`` and ``b`` (n,) on the same questions.

    It is that of a sign test over the questions that changed.
    """
    return sign_test(np.asarray(b, np.float64) - np.asarray(a, np.float64))


def sign_test(differences: ArrayLike, tie: float = 0.0) -> float:
    """Return the exact two-sided p-value of the sign test; differences of at most ``tie`` in size are left out."""
    d = np.asarray(differences, np.float64)
    ups, downs = int(np.count_nonzero(d > tie)), int(np.count_nonzero(d < -tie))
    if not ups + downs:
        return 1.0
    from scipy.stats import binomtest  # imported here because it loads slowly

    return float(binomtest(ups, ups + downs, 0.5).pvalue)


def sign_flip(differences: ArrayLike) -> float:
    """Return the two-sided p-value of "the mean difference is zero": a permutation test that flips signs at random.

    For more than ``FLIPS`` differences a normal approximation is used.
    """
    d = np.asarray(differences, np.float64)
    d = d[d != 0]
    if len(d) < 2:
        return 1.0
    if len(d) > FLIPS:
        return 2 * float(special.ndtr(-abs(float(d.sum())) / math.sqrt(float(d @ d))))
    from scipy.stats import permutation_test

    done = permutation_test(
        (d,), _mean, permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(SEED)
    )
    return float(done.pvalue)


def p_is_bound(p: float) -> bool:
    """Return whether a p-value is the smallest that a permutation test can give: the true one may be smaller."""
    return math.isclose(p, LEAST_P)


def _t(estimate: float, error: float, freedom: float, confidence: float, n: int, method: str) -> Interval:
    half = float(special.stdtrit(freedom, (1 + confidence) / 2)) * error
    p = 2 * float(special.stdtr(freedom, -abs(estimate) / error))
    return Interval(estimate, estimate - half, estimate + half, n, method, p, _detectable(error, freedom, confidence))


def _flat(values: np.ndarray) -> bool:
    """Return whether all values are equal up to rounding."""
    return float(np.ptp(values)) <= 1e-14 * max(1.0, float(np.abs(values).max()))


def _detectable(error: float, freedom: float, confidence: float) -> float:
    """Return the true difference that a test would detect with probability ``POWER``.

    ``error`` is the standard error of the difference, ``freedom`` its degrees of freedom.
    """
    return error * sum(float(special.stdtrit(freedom, q)) for q in ((1 + confidence) / 2, POWER))


def _detectable_change(d: np.ndarray, confidence: float) -> float:
    """Return the true mean change x of scores that is detected with probability ``POWER``.

    x solves n x^2 = z^2 (v + w x - x^2), where the right side is the variance of the changes: v comes from observed
    changes ``d`` that cancel each other out and are there even without a difference. The difference itself consists of
    changes as well, and adds w x; they are assumed to be as large as the observed ones (w), or 1 if none was observed.
    """
    n, sizes = len(d), float(np.abs(d).sum())
    square = float(d @ d)
    size = square / sizes if sizes else 1.0
    spread = max(0.0, square - size * abs(float(d.sum()))) / n
    z = float(special.ndtri((1 + confidence) / 2) + special.ndtri(POWER)) ** 2
    return (z * size + math.sqrt((z * size) ** 2 + 4 * (n + z) * z * spread)) / (2 * (n + z))


def _mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.mean(values, axis=axis)
