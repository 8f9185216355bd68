"""How many repetitions a run gets.

As many as it was told; else five, llama-bench's number, or as many as fit into the budget, which the first repetition
shows. Two lanes that shall find a difference of so many per cent (``detect``) run a pilot: its noise says how many
rounds find that in 80 of 100 runs. Only the noise decides, never the difference, so that no verdict is made likelier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ds4ref.errors import DataError

from .columns import Sample
from .plan import MOST_REPS, Plan
from .samples import seconds

PILOT = 6
"""Rounds that tell the noise; with fewer the answer is itself noise."""
SURE = 1.25
"""Rounds are counted for noise larger by this than the pilot's, which is an estimate from few."""


class Repetitions:
    """``wanted`` is asked before every repetition; it tells ``say`` what it decided."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = lambda message: None):
        self.plan, self.say = plan, say
        self.fixed = plan.reps or (MOST_REPS if len(plan.lanes) > 1 and plan.detect is None else None)

    def wanted(self, lanes: Sequence[Sequence[Sample]]) -> int:
        """Repetitions there are to be, as far as it is known now. DataError if the budget cannot find what it should;
        the message says what it could."""
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
        assert self.plan.detect is not None
        spent = sum(seconds(entry) for samples in lanes for entry in samples) / PILOT
        most = max(PILOT, int(self.plan.budget / spent)) if spent > 0 else PILOT
        found = [SURE * share for share in pilot(*lanes).values()]
        rounds = max((rounds_for(share, self.plan.detect) or most + 1 for share in found), default=PILOT)
        if rounds <= most:
            self.say(f"{rounds} rounds, {duration(rounds * spent)}: they find {self.plan.detect:g} % in 80 of 100 runs")
            return rounds
        least = max(share * shrinks(most) for share in found)
        need = f"{rounds} rounds ({duration(rounds * spent)})" if rounds > most + 1 else "more rounds than there can be"
        raise DataError(
            f"refused: on this machine, as busy as it is, {self.plan.detect:g} % needs {need}; --budget "
            f"{duration(self.plan.budget)} has {most}, which find {100 * math.expm1(least):.1f} %"
        )


def pilot(a: Sequence[Sample], b: Sequence[Sample]) -> dict[str, float]:
    """The log ratio that ``PILOT`` rounds like these find in 80 of 100 runs, by metric."""
    from ds4ref.runs.speed import in_turn

    found = {name: interval.detectable for name, interval in in_turn(a, b).items()}
    return {name: share for name, share in found.items() if share is not None}


def shrinks(rounds: int) -> float:
    """What is detectable with so many rounds, over what it is with ``PILOT``."""
    from scipy.stats import t

    from ds4ref.runs.speed import CONFIDENCE, SPEEDS
    from ds4ref.runs.stats import POWER

    def least(n: int) -> float:
        side = 1 - (1 - CONFIDENCE) / len(SPEEDS) / 2
        return float(t.ppf(side, n - 1) + t.ppf(POWER, n - 1)) / math.sqrt(n)

    return least(rounds) / least(PILOT)


def rounds_for(share: float, per_cent: float, most: int = 10_000) -> int | None:
    """The least number of rounds that finds ``per_cent`` where ``PILOT`` find ``share`` (a log ratio); None if
    ``most`` do not."""
    limit = math.log1p(per_cent / 100)
    if share * shrinks(most) > limit:
        return None
    low, high = PILOT, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if share * shrinks(middle) <= limit else (middle + 1, high)
    return low


def duration(span: float) -> str:
    """Seconds for people."""
    if span < 120:
        return f"{span:.3g} s"
    return f"{span / 60:.0f} min" if span < 7200 else f"{span / 3600:,.0f} h"
