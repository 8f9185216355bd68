"""Running estimates for ``Speculation``: seconds of a pass by rows, acceptance by position. No clock here."""

from __future__ import annotations

from collections import deque
from statistics import median, median_low

import numpy as np

from ..engine_options import MOST_DRAFTED

MOST_ROWS = MOST_DRAFTED + 1

SLOPE, DOUBTED = 0.15, 0.2
"""What a further row is expected to add to a pass, in passes of one row, before it was measured, and how far from the
expectation the first one may be."""
SURPRISING = 1.4
"""Factor between a pass's time and the expected one, either way, from which a pass of one row is asked for."""
FIRST, DOUBT, ALIKE = 0.5, 2.0, 4.0
"""Acceptance that is expected of what was never tried, and trials that this counts for; trials that the position before
counts for."""
DECAY = 1 - 1 / 24
"""Weight of a trial of acceptance after the next one."""
HOPE = 0.5
"""Standard deviations by which acceptance is overestimated: what is uncertain is tried, as long as it is paid for."""


class PassTimes:
    """Seconds of a pass by its number of rows, as medians of the newest: single passes on a busy machine take several
    times as long. The first pass of each number of rows is left out: it may have made a recording.

    level   seconds of a pass of one row; 0.0 before it was measured
    ratios  by rows, 0 to MOST_ROWS, seconds over those of one row: at least 1, at most the number of rows; between and
            beyond measured numbers of rows on a line
    most    the ratios as they may be at most
    surprise  rows and seconds of the last pass if it took far from what was expected: how long a pass of one row takes
              now tells whether the machine has changed, or what the rows cost
    """

    def __init__(self) -> None:
        self.level = 0.0
        self.surprise: tuple[int, float] | None = None
        self._plain: deque[float] = deque(maxlen=7)
        self._ratios: dict[int, deque[float]] = {}
        self._estimate()

    def add(self, rows: int, seconds: float) -> None:
        """Enter a pass of ``rows`` rows."""
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
    """Acceptance of one kind of draft by position: that the token is committed, given that those before it were.

    Positions are expected to be like the one before, as far as they were not tried, or not lately.
    """

    def __init__(self) -> None:
        self._hits, self._trials = [0.0] * MOST_DRAFTED, [0.0] * MOST_DRAFTED

    def add(self, accepted: int, drafted: int) -> None:
        """Enter a draft of ``drafted`` tokens, the first ``accepted`` of which were committed."""
        for position in range(MOST_DRAFTED):
            self._hits[position] = DECAY * self._hits[position] + (position < accepted)
            self._trials[position] = DECAY * self._trials[position] + (position < min(accepted + 1, drafted))

    def tokens(self) -> list[float]:
        """Return the expected tokens of a pass by depth, 0 to MOST_DRAFTED: 1 + a1 + a1 a2 + ..."""
        expected, chain, share, weight = [1.0], 1.0, FIRST, DOUBT
        for hits, trials in zip(self._hits, self._trials, strict=True):
            share = (hits + weight * share) / (trials + weight)
            chain *= min(1.0, share + HOPE * (share * (1 - share) / (trials + weight)) ** 0.5)
            expected.append(expected[-1] + chain)
            weight = ALIKE
        return expected
