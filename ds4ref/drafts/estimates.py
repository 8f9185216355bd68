"""Running estimates for ``Speculation``: the seconds of a pass by its number of rows (tokens that it evaluates), and
how often the token at each position of a draft is accepted. The caller measures the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median, median_low

import numpy as np

from ..engine_options import MOST_DRAFTED

MOST_ROWS = MOST_DRAFTED + 1

SLOPE, DOUBTED = 0.15, 0.2
"""Time that a further row is assumed to add to a pass until it has been measured, as a share of the time of a pass of
one row; and the relative error that this assumption may have."""
SURPRISING = 1.4
"""If a pass takes longer or shorter than expected by this factor, a pass of one row is run next, for comparison."""
FIRST, DOUBT, ALIKE = 0.5, 2.0, 4.0
"""Acceptance assumed for the first position of a draft before any trial; number of trials that this assumption counts
for; number of trials that the estimate for the previous position counts for."""
DECAY = 1 - 1 / 24
"""Factor by which the weight of all earlier trials of acceptance shrinks with each new trial."""
TRUST = 4.0
"""Number of trials that a source's own chances count for, before observed acceptance corrects them."""
HOPE = 0.5
"""Standard deviations added to each estimate of acceptance, so that drafts with few trials get tried."""


class PassTimes:
    """Seconds of a pass by its number of rows: medians of the newest measurements, as single passes on a busy machine
    can take several times as long. The first pass of each number is left out, as it may have made a recording.

    level   seconds of a pass of one row; 0.0 before it was measured
    ratios  by number of rows, 0 to MOST_ROWS: time of such a pass divided by that of a pass of one row, between 1 and
            the number of rows; interpolated for numbers that were not measured
    most    the same list with the uncertainty added: the largest ratios to expect
    surprise  rows and seconds of the last pass if its time was far from the expected one, else None; the next pass of
              one row then shows whether the machine became slower (or faster) or only passes of that many rows
    """

    def __init__(self) -> None:
        self.level = 0.0
        self.surprise: tuple[int, float] | None = None
        self._plain: deque[float] = deque(maxlen=7)
        self._ratios: dict[int, deque[float]] = {}
        self._estimate()

    def add(self, rows: int, seconds: float) -> None:
        """Take into account that a pass of ``rows`` rows took ``seconds``."""
        if rows not in self._ratios:
            self._ratios[rows] = deque(maxlen=7)
        elif rows == 1:
            self._plain.append(seconds)
            self.level = median_low(self._plain)
            if self.surprise is not None:
                surprised, taken = self.surprise
                self._ratios[surprised].append(taken / seconds)
                self._estimate()
            self.surprise = None
        elif self.level:
            expected = self.level * self.ratios[rows]
            if self._ratios[rows] and not expected / SURPRISING < seconds < expected * SURPRISING:
                self.surprise = rows, seconds
                return
            self._ratios[rows].append(seconds / self.level)
            self._estimate()

    def _estimate(self) -> None:
        known = {1: 1.0} | {rows: median(self._ratios[rows]) for rows in sorted(self._ratios) if self._ratios[rows]}
        rows = np.arange(1, MOST_ROWS + 1)
        line = np.interp(rows, list(known), list(known.values())) + SLOPE * np.maximum(rows - max(known), 0)
        doubt = [0.0, *(DOUBTED / (1 + len(self._ratios.get(count, ()))) for count in range(2, MOST_ROWS + 1))]
        self.ratios, self.most = ([0.0, *np.clip(part, 1, rows).tolist()] for part in (line, line + line * doubt))


class Acceptance:
    """Estimates, for one kind of draft and each position in it, of the probability that the drafted token is accepted
    if those before it were.

    A position that was not tried, or not lately, is assumed to be like the position before it.
    """

    def __init__(self) -> None:
        self._hits, self._trials = [0.0] * MOST_DRAFTED, [0.0] * MOST_DRAFTED
        self._claims = [0.0] * MOST_DRAFTED

    def add(self, accepted: int, drafted: int, chances: Sequence[float] = ()) -> None:
        """Take into account a draft of ``drafted`` tokens, of which the first ``accepted`` were accepted; ``chances``:
        what its source expected of each."""
        for position in range(MOST_DRAFTED):
            tried = position < min(accepted + 1, drafted)
            self._hits[position] = DECAY * self._hits[position] + (position < accepted)
            self._trials[position] = DECAY * self._trials[position] + tried
            self._claims[position] = DECAY * self._claims[position] + (chances[position] if tried and chances else 0)

    def tokens(self, chances: Sequence[float] = ()) -> list[float]:
        """Return the expected number of tokens that a pass adds to the text, by number of drafted tokens, 0 to
        MOST_DRAFTED: 1 + a1 + a1 a2 + ... for acceptances ai.

        chances: what the source expects of each token of this draft; they are corrected by the ratio of accepted to
        expected tokens so far, and tokens beyond them count as wrong.
        """
        expected, chain, share, weight = [1.0], 1.0, FIRST, DOUBT
        if chances:
            for hits, claims, chance in zip(self._hits, self._claims, chances, strict=False):
                chain *= min(1.0, chance * (hits + TRUST) / (claims + TRUST))
                expected.append(expected[-1] + chain)
            return expected + expected[-1:] * (MOST_DRAFTED + 1 - len(expected))
        for hits, trials in zip(self._hits, self._trials, strict=True):
            share = (hits + weight * share) / (trials + weight)
            chain *= min(1.0, share + HOPE * (share * (1 - share) / (trials + weight)) ** 0.5)
            expected.append(expected[-1] + chain)
            weight = ALIKE
        return expected
