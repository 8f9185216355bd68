"""Decides how many repetitions a run gets.

As many as requested; else five, llama-bench's number, or as many as fit into the budget, estimated from the first
repetition. For two lanes whose difference is to be detected (``detect``), pilot rounds measure the noise, which gives
the number of rounds for 80 % power. Only the noise decides, never the measured difference, so that no verdict becomes
more likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ds4ref.errors import DataError
from ds4ref.runs.columns import Sample

from .plan import MOST_REPS, Plan
from .samples import seconds

PILOT = 6
"""Number of rounds from which the noise is estimated."""
MOST_ROUNDS = 10_000
"""Number of rounds above which a difference counts as not detectable."""
SURE = 1.25
"""Safety factor on the noise of the pilot rounds, since few rounds estimate it."""


class Repetitions:
    """Determines the number of repetitions of a plan: the runner asks ``wanted`` before each one.

    ``say`` is called with messages about its decisions.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None] = lambda message: None):
        self.plan, self.say = plan, say
        self.fixed = plan.reps or (MOST_REPS if len(plan.lanes) > 1 and plan.detect is None else None)

    def wanted(self, lanes: Sequence[Sequence[Sample]]) -> int:
        """Return the number of repetitions to run, as far as the ``lanes``' samples so far determine it.

        Raises DataError if the budget is too small to detect the difference ``detect``, whose message says which one is
        detectable, or if too many rows have warnings.
        """
        reps = 1 + max((entry["rep"] for samples in lanes for entry in samples), default=-1)
        if self.fixed is None and reps >= (1 if self.plan.detect is None else PILOT):
            self.fixed = self._affordable(lanes) if self.plan.detect is None else self._needed(lanes)
        return self.fixed or (1 if self.plan.detect is None else PILOT)

    def _affordable(self, lanes: Sequence[Sequence[Sample]]) -> int:
        one = sum(seconds(entry) for samples in lanes for entry in samples if entry["rep"] == 0)
        fit = int(self.plan.budget / one) if one > 0 else MOST_REPS
        if fit < MOST_REPS:
            self.say(f"{max(fit, 1)} repetition(s): one takes {duration(one)}, --budget is "
                     f"{duration(self.plan.budget)} (-r N for more)")  # fmt: skip
        return max(1, min(MOST_REPS, fit))

    def _needed(self, lanes: Sequence[Sequence[Sample]]) -> int:
        from ds4ref.runs.speed import SPEEDS, refusal

        assert self.plan.detect is not None
        whys = [refusal(lanes[0], lanes[1], column) for _, column, _ in SPEEDS]
        if all(whys):
            raise DataError(f"refused: no difference can be detected ({whys[0]})")
        spent = sum(seconds(entry) for samples in lanes for entry in samples) / PILOT
        most = max(PILOT, int(self.plan.budget / spent)) if spent > 0 else PILOT
        detectable = [SURE * share for share in pilot(*lanes).values()]
        rounds = max((rounds_for(share, self.plan.detect) or MOST_ROUNDS + 1 for share in detectable), default=PILOT)
        if rounds <= most:
            self.say(f"{rounds} rounds, {duration(rounds * spent)}: they detect {self.plan.detect:g} % with 80 % power")
            return rounds
        least = max(share * shrinks(most) for share in detectable)
        need = f"{rounds} rounds ({duration(rounds * spent)})"
        if rounds > MOST_ROUNDS:
            need = f"more than {MOST_ROUNDS:,} rounds"
        raise DataError(
            f"refused: with the noise of this machine now, detecting {self.plan.detect:g} % needs {need}; --budget "
            f"{duration(self.plan.budget)} allows {most}, which detect {100 * math.expm1(least):.1f} %"
        )


def pilot(a: Sequence[Sample], b: Sequence[Sample]) -> dict[str, float]:
    """Return, by metric, the log ratio that ``PILOT`` rounds with the noise of these samples detect with 80 % power."""
    from ds4ref.runs.speed import in_turn

    detectable = {name: interval.detectable for name, interval in in_turn(a, b).items()}
    return {name: share for name, share in detectable.items() if share is not None}


def shrinks(rounds: int) -> float:
    """Return the detectable difference of ``rounds`` rounds as a share of that of ``PILOT`` rounds."""
    from scipy.special import stdtrit

    from ds4ref.runs.speed import CONFIDENCE, SPEEDS
    from ds4ref.runs.stats import POWER

    def least(n: int) -> float:
        side = 1 - (1 - CONFIDENCE) / len(SPEEDS) / 2
        return float(stdtrit(n - 1, side) + stdtrit(n - 1, POWER)) / math.sqrt(n)

    return least(rounds) / least(PILOT)


def rounds_for(share: float, per_cent: float, most: int = MOST_ROUNDS) -> int | None:
    """Return the least number of rounds that detects ``per_cent``; None if ``most`` rounds do not.

    ``share``: the log ratio that ``PILOT`` rounds detect.
    """
    limit = math.log1p(per_cent / 100)
    if share * shrinks(most) > limit:
        return None
    low, high = PILOT, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if share * shrinks(middle) <= limit else (middle + 1, high)
    return low


def duration(span: float) -> str:
    """Format a duration in seconds for messages."""
    if span < 120:
        return f"{span:.3g} s"
    return f"{span / 60:.0f} min" if span < 7170 else f"{span / 3600:,.0f} h"
