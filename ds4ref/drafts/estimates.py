"""Running estimates for ``Speculation``: seconds of a pass by rows, acceptance by position. No clock here.

Both are robust: single passes on a busy machine, or with a recording to make, take several times as long.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from ..engine_options import MOST_DRAFTED

MOST_ROWS = MOST_DRAFTED + 1

SLOPE = 0.15
"""What a further row is expected to add to a pass, in passes of one row, before it was measured."""
STEP, WALK = 0.2, 0.08
"""Standard deviations of the logarithm of that: of all rows together, and from a number of rows to the next."""
NOISE, DRIFT, CHANGE = 0.1, 0.03, 0.007
"""Standard deviations of logarithms: of a pass; a pass, of the level; a pass, of a ratio."""
OUTLIER = 3.0
"""Standard deviations to which surprises are cut."""
PENDING, AT_ONCE = 16, 4
"""Passes that are kept until somebody asks, of more the newest are enough; and passes of one row that change no
estimate before there are so many of them, since the filter takes longer than all else that a token needs here."""

FIRST, DOUBT, ALIKE = 0.5, 2.0, 4.0
"""Acceptance that is expected of what was never tried, and trials that this counts for; trials that the position before
counts for."""
SLOW, FAST = 1 - 1 / 100, 1 - 1 / 8
"""Decay of acceptance by trial: of the estimate, and of the one that notices changes."""
HOPE = 0.5
"""Standard deviations by which acceptance is overestimated: what is uncertain is tried, as long as it is paid for."""
NOTICED, RENEWED = 3.0, 4.0
"""Standard deviations between the two from which the estimate begins anew with the fast one, and as how many trials."""


class PassTimes:
    """Seconds of a pass by its number of rows: a level that follows context and load, times a ratio by rows.

    A Kalman filter of the logarithms: log seconds = level + ratio[rows] + noise, ratio[1] = 0. The level drifts from
    pass to pass, ratios hardly, so what slows all passes is told from what a row costs. Ratios of neighbouring numbers
    of rows are expected to be alike. The first pass of each number of rows is left out: it makes a recording.
    """

    def __init__(self) -> None:
        further = np.arange(MOST_ROWS, dtype=np.float64)  # state: the level, then the ratios of 2, 3, ... rows
        self._mean = np.log1p(SLOPE * further)
        self._cov = WALK**2 * np.minimum(further, further[:, None]) + STEP**2
        self._cov[0, :] = self._cov[:, 0] = 0.0
        self._change = np.diag(np.r_[DRIFT, np.full(MOST_ROWS - 1, CHANGE)] ** 2)
        self._seen: set[int] = set()
        self._pending: deque[tuple[int, float]] = deque(maxlen=PENDING)
        self._known = False
        self._ratios: list[float] | None = None
        self._most: list[float] = []

    def add(self, rows: int, seconds: float) -> None:
        """Enter a pass of ``rows`` rows."""
        if rows not in self._seen:
            self._seen.add(rows)
        elif seconds > 0:
            self._pending.append((rows, math.log(seconds)))
            if rows > 1 or not self._known or len(self._pending) >= AT_ONCE:
                self._ratios = None

    def _filter(self) -> None:
        mean, cov = self._mean, self._cov
        for rows, value in self._pending:
            if not self._known:
                if rows > 1:
                    continue
                mean[0], cov[0, 0], self._known = value, NOISE**2, True
                continue
            cov += self._change
            along = cov[0] + cov[rows - 1] if rows > 1 else cov[0].copy()
            variance = along[0] + (along[rows - 1] if rows > 1 else 0.0) + NOISE**2
            surprise = value - mean[0] - (mean[rows - 1] if rows > 1 else 0.0)
            most = OUTLIER * math.sqrt(variance)
            mean += along * (min(max(surprise, -most), most) / variance)
            cov -= np.outer(along, along / variance)
        self._pending.clear()
        spread = np.sqrt(np.diagonal(cov))[1:]
        self._ratios, self._most = ([0.0, 1.0, *np.clip(np.exp(logs), 1.0, np.arange(2.0, MOST_ROWS + 1)).tolist()]
                                    for logs in (mean[1:], mean[1:] + spread))  # fmt: skip

    @property
    def level(self) -> float:
        """Return the seconds of a pass of one row; 0.0 before two were measured."""
        if self._ratios is None:
            self._filter()
        return math.exp(self._mean[0]) if self._known else 0.0

    @property
    def ratios(self) -> list[float]:
        """Return by rows, 0 to MOST_ROWS, the seconds of a pass over those of one row: at least 1, at most ``rows``."""
        if self._ratios is None:
            self._filter()
        assert self._ratios is not None
        return self._ratios

    @property
    def most(self) -> list[float]:
        """Return the ratios as they may be at most: one standard deviation above."""
        if self._ratios is None:
            self._filter()
        return self._most


class Rate:
    """A decaying share of hits, which begins anew where a faster one departs from it."""

    __slots__ = ("_fast", "_hits", "_trials")

    def __init__(self) -> None:
        self._hits = self._trials = 0.0
        self._fast: float | None = None

    def fade(self) -> None:
        """Let what is known count less, towards the prior."""
        self._hits *= SLOW
        self._trials *= SLOW

    def add(self, hit: bool) -> None:
        """Enter a trial."""
        self._hits += hit
        self._trials += 1
        self._fast = float(hit) if self._fast is None else FAST * self._fast + (1 - FAST) * hit
        share = self._hits / self._trials
        spread = (max(share * (1 - share), 0.05) * (1 - FAST) / (1 + FAST)) ** 0.5
        if self._trials > 8 and abs(self._fast - share) > NOTICED * spread:
            self._trials = RENEWED
            self._hits = self._fast * self._trials

    def estimate(self, prior: float, weight: float = 1.0) -> float:
        """Return the share, with ``prior`` as ``weight`` trials more."""
        return (self._hits + weight * prior) / (self._trials + weight)

    def hoped(self, share: float, weight: float) -> float:
        """Return ``share``, an estimate of this rate, and ``HOPE`` standard deviations above."""
        return min(1.0, share + HOPE * (share * (1 - share) / (self._trials + weight)) ** 0.5)


class Acceptance:
    """Acceptance of one kind of draft by position: that the token is committed, given that those before it were.

    Positions are expected to be like the one before, as far as they were not tried, or not lately.
    """

    def __init__(self) -> None:
        self._rates = [Rate() for _ in range(MOST_DRAFTED)]

    def add(self, accepted: int, drafted: int) -> None:
        """Enter a draft of ``drafted`` tokens, the first ``accepted`` of which were committed."""
        for position, rate in enumerate(self._rates):
            rate.fade()
            if position < min(accepted + 1, drafted):
                rate.add(position < accepted)

    def tokens(self) -> list[float]:
        """Return the expected tokens of a pass by depth, 0 to MOST_DRAFTED: 1 + a1 + a1 a2 + ..."""
        expected, chain, share, weight = [1.0], 1.0, FIRST, DOUBT
        for rate in self._rates:
            share = rate.estimate(share, weight)
            chain *= rate.hoped(share, weight)
            expected.append(expected[-1] + chain)
            weight = ALIKE
        return expected
