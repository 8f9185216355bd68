"""Measure how far two runs of a correct engine differ, to judge run against run and prompt against continuation.

The model is run several times in the target's rounding set (where and how it rounds intermediates), with float noise of
a few units in the last place on every block input. If the set quantizes, this noise moves some values to the next
quantization step, and correct runs differ by tenths of a nat. Two runs of an engine that differ no more than these
noisy runs count as the same.

    yard = measure(engine, ids, "ds4")
    yard.judge(per_position_rms)        outcome and a sentence

A level is the rms over positions of the rms over tokens, in nats. Such flips are rare and large, so the level of few
positions varies much: the level that correct runs reach is resampled from pairs of noisy runs for the number of
positions compared. Between ``NEAR`` and ``FAR`` times that level no conclusion is drawn. The two factors are set by
hand; prefill in chunks differs from decode by 0.2 to 0.9 times the pairs' level, in the three modes of the embedded and
of the diagnostic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ds4ref.engine import Engine
from ds4ref.variants import MODE_NAMES, ROUNDING, Runner

from ..finding import Outcome, counted
from ..observation import log_softmax

RUNS = 4
"""Number of runs of the model, the first without noise."""
DRAWS = 2000
"""Number of resamples from which the level of correct runs is estimated."""
NEAR, FAR = 1.3, 2.0
FLOAT = 1e-4
"""Difference in nats that another summation order, another exponential function, or an API's rounding to decimals may
cause in any model."""
UNKNOWN = 0.3
"""Nats of noise assumed for engines whose rounding is unknown (as in ``check``)."""


@dataclass(frozen=True)
class Yardstick:
    """Distances between noisy runs of a correct engine.

    pairs  distances of pairs of runs at single positions (n,), nats
    of     description of the runs, in words
    low    the same in the mode with the least noise, if the target's mode is unknown; else None
    """

    pairs: np.ndarray = field(repr=False)
    of: str
    low: np.ndarray | None = field(default=None, repr=False)

    def near(self, count: int) -> float:
        """Return the level in nats over ``count`` positions up to which runs count as equal."""
        return max(NEAR * _level_reached(self.pairs if self.low is None else self.low, count, 0.99), FLOAT)

    def far(self, count: int) -> float:
        """Return the level in nats over ``count`` positions above which something is wrong."""
        return max(FAR * _level_reached(self.pairs, count, 0.999), 10 * FLOAT)

    @property
    def apart(self) -> float:
        """Return the largest distance in nats of correct runs at a single position."""
        return max(FAR * float(self.pairs.max()), 10 * FLOAT)

    def judge(self, rms: np.ndarray) -> tuple[Outcome, str]:
        """Judge the distances of two runs by position, ``rms`` (n,), NaN where a position could not be compared."""
        known = rms[np.isfinite(rms)]
        if not len(known):
            return Outcome.UNSURE, "nothing could be compared"
        if not known.any():
            return Outcome.OK, f"identical at {counted(len(known), 'position')}"
        reached, usual, near, far = level(known), level(self.pairs), self.near(len(known)), self.far(len(known))
        beyond = int((known > self.apart).sum())
        figure = f"{reached:.2g} nats rms over {counted(len(known), 'position')}, at most {known.max():.2g}"
        if reached > far or beyond:
            single = f"; {counted(beyond, 'position')} outside any noise" if beyond else ""
            return Outcome.WRONG, f"{figure}, float noise is about {usual:.2g}{single}"
        if reached > near:
            return (
                Outcome.UNSURE,
                f"{figure}: nonzero, but not distinguishable from noise ({near:.2g} to {far:.2g})",
            )
        return Outcome.OK, f"{figure}: within float noise"

    def limit(self, count: int) -> str:
        """Return a sentence on the differences that a comparison of ``count`` positions can detect."""
        return (f"reported as wrong above {self.far(count):.2g} nats rms, or {self.apart:.2g} at one position; "
                f"detection limit {self.near(count):.2g} ({self.of})")  # fmt: skip


def level(rms: np.ndarray) -> float:
    """Return the rms of distances over positions."""
    return float(np.sqrt(np.mean(np.square(rms))))


def _level_reached(pairs: np.ndarray, count: int, quantile: float) -> float:
    """Return the level (nats) that correct runs stay below over ``count`` positions with probability ``quantile``.

    ``pairs`` (n,): distances of noisy runs at single positions.
    """
    drawn = np.random.default_rng(1).choice(pairs**2, (DRAWS, min(count, 1000)))
    return float(np.quantile(np.sqrt(drawn.mean(axis=1)), quantile))


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the rms over tokens of the difference of two tables of log probabilities (T, V), by position (T,).

    A token whose value is finite in only one table makes the distance infinite; one finite in neither is ignored.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        square = (a - b) ** 2
    both, one = np.isfinite(a) & np.isfinite(b), np.isfinite(a) != np.isfinite(b)
    count = both.sum(axis=1)
    rms_by_position = np.sqrt(np.where(both, square, 0.0).sum(axis=1) / np.maximum(count, 1))
    return np.where(one.any(axis=1), np.inf, np.where(count > 0, rms_by_position, np.nan))


def measure(engine: Engine, ids: Sequence[int], mode: str | None, top: int | None = None) -> Yardstick:
    """Measure a yardstick from ``RUNS`` runs of ``engine``'s model on the tokens ``ids`` in rounding set ``mode``.

    With mode None (unknown), differences beyond the noisiest mode's noise are wrong, and those within the noise of
    "exact" are none. ``top``: compare only this many best tokens of the noiseless run (None: all).
    """
    runner = Runner(engine)
    if mode in ROUNDING:
        pairs = _pairs(runner, ids, str(mode), top)
        return Yardstick(pairs, f"measured on pairs of noisy runs of the model in {mode}")
    low = _pairs(runner, ids, "exact", top)
    widest = max((_pairs(runner, ids, each, top) for each in MODE_NAMES if each != "exact"), key=level)
    return Yardstick(widest, "measured on noisy runs of the model in its noisiest mode (the target's is unknown)", low)


def _pairs(runner: Runner, ids: Sequence[int], mode: str, top: int | None) -> np.ndarray:
    runs = [runner.run(ids, mode)[0]]
    runs += [runner.run(ids, mode, noise=np.random.default_rng(seed))[0] for seed in range(1, RUNS)]
    rows = [log_softmax(run) for run in runs]
    if top:
        best = np.argsort(-rows[0], axis=1, kind="stable")[:, :top]
        rows = [np.take_along_axis(each, best, axis=1) for each in rows]
    return np.concatenate([distance(a, b) for i, a in enumerate(rows) for b in rows[:i]])


def fallback() -> Yardstick:
    """Return a yardstick for an unknown model: differences between ``FLOAT`` and ``UNKNOWN`` allow no conclusion."""
    return Yardstick(np.full(1, UNKNOWN), "not measured: the target's model is not available", np.full(1, FLOAT))
