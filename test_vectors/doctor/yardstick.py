"""How far two runs of a right engine lie apart: the measure for run against run, prompt against continuation.

The model is run several times with float noise of a few units in the last place on every block input, in the rounding
set that the target uses. Where the set rounds in steps, this noise flips steps, and right runs part by tenths of a nat.
Two runs of one engine that lie no further apart than these are the same as far as anybody can tell.

    yard = measure(engine, ids, "ds4")
    yard.judge(per_position_rms)        outcome and a sentence

A level is the rms over positions of the rms over tokens, in nats. Flips are rare and large, so that a few positions say
little: the level that right runs reach is drawn from the pairs for as many positions as were compared. Between ``NEAR``
and ``FAR`` times what they reach nothing is claimed. The factors are chosen; the pass's own two ways (in chunks, one by
one) lie at 0.2 to 0.9 times the pairs' level, in the three modes of the embedded and of the diagnostic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ds4ref.engine import Engine
from ds4ref.variants import MODE_NAMES, ROUNDING, Runner

from ..observation import log_softmax
from .findings import Outcome, many

RUNS = 4
DRAWS = 2000
NEAR, FAR = 1.3, 2.0
FLOAT = 1e-4
"""Nats that other summation orders, other exponentials and decimals of an API may make, whatever the model."""
UNKNOWN = 0.3
"""Nats, for engines whose rounding is not known (as in ``check``)."""


@dataclass(frozen=True)
class Yardstick:
    """``pairs`` (n,) are distances of runs at single positions, nats; ``low`` those of the narrowest mode, where it is
    not known which one the target uses. ``of`` says what it was measured on."""

    pairs: np.ndarray = field(repr=False)
    of: str
    low: np.ndarray | None = field(default=None, repr=False)

    def near(self, count: int) -> float:
        """Over so many positions nothing is wrong below this level."""
        return max(NEAR * _reached(self.pairs if self.low is None else self.low, count, 0.99), FLOAT)

    def far(self, count: int) -> float:
        """Over so many positions something is wrong above this level."""
        return max(FAR * _reached(self.pairs, count, 0.999), 10 * FLOAT)

    @property
    def apart(self) -> float:
        """At no single position do right runs lie further apart than this."""
        return max(FAR * float(self.pairs.max()), 10 * FLOAT)

    def judge(self, rms: np.ndarray) -> tuple[Outcome, str]:
        """``rms`` (n,): distance of two runs at each position, NaN where nothing could be compared."""
        known = rms[np.isfinite(rms)]
        if not len(known):
            return Outcome.UNSURE, "nothing could be compared"
        if not known.any():
            return Outcome.OK, f"identical at {many(len(known), 'position')}"
        found, usual, near, far = level(known), level(self.pairs), self.near(len(known)), self.far(len(known))
        beyond = int((known > self.apart).sum())
        figure = f"{found:.2g} nats rms over {many(len(known), 'position')}, at most {known.max():.2g}"
        if found > far or beyond:
            single = f"; {many(beyond, 'position')} beyond all noise" if beyond else ""
            return Outcome.WRONG, f"{figure}, where float noise makes {usual:.2g}{single}"
        if found > near:
            return (
                Outcome.UNSURE,
                f"{figure}: more than nothing, less than could be told from noise ({near:.2g} to {far:.2g})",
            )
        return Outcome.OK, f"{figure}: no more than float noise makes"

    def sight(self, count: int) -> str:
        """What would have been seen over so many positions."""
        return (f"above {self.far(count):.2g} nats rms, or {self.apart:.2g} at one position, it would have been called "
                f"wrong; below {self.near(count):.2g} a mistake cannot be seen ({self.of})")  # fmt: skip


def level(rms: np.ndarray) -> float:
    """rms of distances."""
    return float(np.sqrt(np.mean(np.square(rms))))


def _reached(pairs: np.ndarray, count: int, quantile: float) -> float:
    """The level that so many positions of right runs stay below, with this probability."""
    drawn = np.random.default_rng(1).choice(pairs**2, (DRAWS, min(count, 1000)))
    return float(np.quantile(np.sqrt(drawn.mean(axis=1)), quantile))


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """rms over tokens of the difference of log probabilities (T, V) at each position (T,). A token that is a number on
    one side only makes the distance infinite; one that is none on either side does not count."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        square = (a - b) ** 2
    both, one = np.isfinite(a) & np.isfinite(b), np.isfinite(a) != np.isfinite(b)
    count = both.sum(axis=1)
    found = np.sqrt(np.where(both, square, 0.0).sum(axis=1) / np.maximum(count, 1))
    return np.where(one.any(axis=1), np.inf, np.where(count > 0, found, np.nan))


def measure(engine: Engine, ids: Sequence[int], mode: str | None, top: int | None = None, last: int = 0) -> Yardstick:
    """From ``RUNS`` runs of ``engine``'s model in rounding set ``mode``; None: nothing above what the widest mode makes
    is right, nothing above what exact makes is called clean. ``top`` compares only the best tokens of the clean run,
    ``last`` (0: all) only so many positions at the end."""
    runner = Runner(engine)
    if mode in ROUNDING:
        pairs = _pairs(runner, ids, str(mode), top, last)
        return Yardstick(pairs, f"measured on pairs of noisy runs of the model in {mode}")
    low = _pairs(runner, ids, "exact", top, last)
    widest = max((_pairs(runner, ids, each, top, last) for each in MODE_NAMES if each != "exact"), key=level)
    return Yardstick(widest, "measured on noisy runs of the model in its widest mode, as the target's is unknown", low)


def _pairs(runner: Runner, ids: Sequence[int], mode: str, top: int | None, last: int) -> np.ndarray:
    runs = [runner.run(ids, mode)[0]]
    runs += [runner.run(ids, mode, noise=np.random.default_rng(seed))[0] for seed in range(1, RUNS)]
    rows = [log_softmax(run[-last:]) for run in runs]
    if top:
        best = np.argsort(-rows[0], axis=1, kind="stable")[:, :top]
        rows = [np.take_along_axis(each, best, axis=1) for each in rows]
    return np.concatenate([distance(a, b) for i, a in enumerate(rows) for b in rows[:i]])


def fallback() -> Yardstick:
    """Where the target's model is not at hand: between float noise and the floor of unknown modes nothing is said."""
    return Yardstick(np.full(1, UNKNOWN), "not measured, since the target's model is not at hand", np.full(1, FLOAT))
