"""Timing on a shared machine: the variants ("arms") take turns, and only ratios within a round count."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Arm = Callable[[], float]
"""Type of a function that does the work once and returns its seconds, or another figure."""


class OutOfTime(Exception):
    """Raised when the time budget of the run does not suffice."""


class Budget:
    """Time budget of a run in ``seconds``, from now; None is unlimited."""

    def __init__(self, seconds: float | None):
        self.seconds, self._start = seconds, time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._start

    def need(self, seconds: float) -> None:
        """Raise OutOfTime unless ``seconds`` are left."""
        if self.seconds is not None and self.spent + seconds > self.seconds:
            raise OutOfTime(f"skipped: {self.spent:.0f} of {self.seconds:.0f} s were used")


def clocked(work: Callable[[], object], repeat: int = 1) -> Arm:
    """Return an arm that measures the wall time of ``work`` in seconds, the best of ``repeat`` runs in a row.

    A few milliseconds of work are either undisturbed or interrupted for longer than they take; the best of a few is
    undisturbed. Longer work is run once.
    """

    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return lambda: min(once() for _ in range(repeat))


def interleave(arms: Mapping[str, Arm], rounds: int, warm: bool = True) -> dict[str, list[float]]:
    """Run all arms for ``rounds`` rounds in alternating order (AB BA); return each arm's results by name.

    ``warm``: run one unrecorded round first.
    """
    names = list(arms)
    if warm:
        for name in names:
            arms[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            samples[name].append(arms[name]())
    return samples


def ratios(above: list[float], below: list[float], factor: float = 1.0) -> list[float]:
    """Return ``factor * above / below`` for each round."""
    return [factor * a / b for a, b in zip(above, below, strict=True)]
