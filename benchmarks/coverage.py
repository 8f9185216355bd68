"""Do intervals have their nominal coverage? Every kind of ``ds4ref.runs.stats``, on simulated data with known truth.

    python -m benchmarks.coverage                    2,000 trials a cell, about three minutes
    python -m benchmarks.coverage --trials 200 --only centre

A cell of the table is the percentage of trials in which a 95 % interval contained the truth; ``-`` if no interval can
be given. The data resembles the use of each interval: log ratios of speeds (rounds, two runs), differences of NLL over
texts, grades. Noise is normal, skewed, heavy-tailed, disturbed, or rounded as by a clock. With 2,000 trials the
percentage has an error of about 1.

Prints a table, and a line of JSON. Does not cover noise common to all rounds, which no interval can detect.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.runs import stats
from ds4ref.runs.provenance import stamp
from ds4ref.runs.stats import Interval

from . import asked

SIZES = (3, 4, 5, 8, 10, 20, 30, 50, 100)
SEED = 20261122

Rng = np.random.Generator
Draw = Callable[[Rng, int], tuple[tuple[Any, ...], float]]
"""Type of a function of (random generator, n) that returns (arguments of the interval for n values, the truth)."""


@dataclass(frozen=True)
class Case:
    """A kind of confidence interval, and the distribution of the simulated data on which it is tried."""

    kind: str
    data: str
    interval: Callable[..., Interval]
    draw: Draw

    @property
    def name(self) -> str:
        """Return the name of the case, as in the table and for ``--only``."""
        return f"{self.kind}, {self.data}"


def coverage(case: Case, n: int, trials: int, seed: int = SEED) -> tuple[float, int]:
    """Simulate one cell of the table with n values per trial; return (share of the intervals that contain the truth,
    number of intervals).

    The share is NaN if no interval could be given.
    """
    rng = np.random.default_rng([seed, n, *case.name.encode()])
    count = covering = 0
    for _ in range(trials):
        values, truth = case.draw(rng, n)
        interval_ = case.interval(*values)
        count += interval_.known
        covering += interval_.known and interval_.low <= truth <= interval_.high
    return (covering / count if count else float("nan")), count


# --- noise of one value: functions from (rng, shape) to values whose centre is 0

Noise = Callable[[Rng, Any], np.ndarray]

NOISE: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    # differences of two log-normal times (sigma 1): heavy tails on both sides
    "lognormal": lambda rng, shape: rng.lognormal(size=shape) - rng.lognormal(size=shape),
    # Student's t with three degrees of freedom
    "heavy": lambda rng, shape: rng.standard_t(3, size=shape),
    # rounded to half a deviation, like times of a coarse clock; zero lies between two ticks
    "rounded": lambda rng, shape: np.round((rng.normal(size=shape) + 0.3) / 0.5) * 0.5 - 0.3,
    # rounded to a whole deviation, so that most values are tied
    "tied": lambda rng, shape: np.round(rng.normal(size=shape) + 0.3) - 0.3,
    # log-normal values (sigma 1/2) minus their mean: outliers on one side only
    "skewed": lambda rng, shape: rng.lognormal(0, 0.5, shape) - np.exp(0.125),
    # exponential values minus their mean: skewness 2
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
}


def disturbed(rng: Rng, shape: Any) -> np.ndarray:
    """Draw normal values, one in ten of them three to eight deviations off on either side, like an interrupted run."""
    hit = np.where(rng.random(shape) < 0.1, rng.uniform(3, 8, shape), 0) * rng.choice([-1, 1], shape)
    return rng.normal(size=shape) + hit


NOISE["disturbed"] = disturbed


# --- what the intervals are used for


def _centre(name: str) -> Draw:
    noise = NOISE[name]
    truth = 0.0 if name in ("rounded", "tied") else _hodges_lehmann(noise(np.random.default_rng(1), (2, 400_000)))
    return lambda rng, n: ((noise(rng, n),), truth)


def _hodges_lehmann(pairs: np.ndarray) -> float:
    """Return the centre of a distribution, from pairs (2, n) of its values: the median of the pairs' means."""
    return float(np.median(pairs.mean(axis=0)))


def _rounds(name: str, depths: int = 8) -> Draw:
    """Draw rounds of measurements at several depths (positions in the context), with errors common to each round, so
    that its values are not independent."""

    def cells(rng: Rng, n: int) -> np.ndarray:
        return 0.01 * rng.normal(size=(n, 1)) + 0.02 * NOISE[name](rng, (n, depths))

    cut = int(stats.TRIM * depths)
    draws = np.sort(cells(np.random.default_rng(1), 200_000))[:, cut : depths - cut].mean(axis=1)
    truth = _hodges_lehmann(draws.reshape(2, -1))
    return lambda rng, n: ((cells(rng, n),), truth)


def _two(one: str, other: str, times: float = 1.0) -> Draw:
    return lambda rng, n: ((NOISE[one](rng, n), 0.5 + times * NOISE[other](rng, n)), 0.5)


def _texts(name: str, lengths: str) -> Draw:
    """Draw differences of NLL over texts: each text has a difference of its own, and its tokens have noise."""

    def draw(rng: Rng, n: int) -> tuple[tuple[Any, ...], float]:
        if lengths == "like":
            tokens = np.full(n, 64.0)
        elif lengths == "1 to 10":
            tokens = rng.integers(20, 200, n).astype(float)
        else:
            tokens = np.maximum(4, rng.lognormal(4, 0.8, n).round())
        difference = 0.02 * NOISE[name](rng, n) + 0.1 * rng.normal(size=n) / np.sqrt(tokens)
        return (((0.01 + difference) * tokens, tokens), 0.01)

    return draw


def _changes(share: float, levels: int = 1) -> Draw:
    """Draw scores of two engines A and B on the same questions, which agree on all but a share of them. With one level
    a score is 0 or 1, with more also parts of it."""

    def draw(rng: Rng, n: int) -> tuple[tuple[Any, ...], float]:
        a = rng.binomial(levels, 0.6, n) / levels
        answered_anew = rng.random(n) < share
        return ((a, np.where(answered_anew, rng.binomial(levels, 0.7, n) / levels, a)), 0.1 * share)

    return draw


def _asked(epochs: int, same_questions: bool = False) -> Draw:
    """Draw scores of questions of varying difficulty. The truth is the mean score over all such questions or, with
    ``same_questions``, over just these, asked infinitely often."""

    def draw(rng: Rng, n: int) -> tuple[tuple[Any, ...], float]:
        p = asked.questions(rng, n)
        return ((asked.scores(rng, p, epochs),), float(p.mean()) if same_questions else asked.ENDS[0] / sum(asked.ENDS))

    return draw


def _lost(kind: str, size: float, epochs: int) -> Draw:
    """Draw changes of score from engine A to engine B, which has a loss of this kind and size (``asked``), on the same
    questions."""
    loss = asked.LOSSES[kind]
    truth = -asked.mean_loss(loss, size)

    def draw(rng: Rng, n: int) -> tuple[tuple[Any, ...], float]:
        p = asked.questions(rng, n)
        return ((asked.scores(rng, loss(rng, p, size), epochs) - asked.scores(rng, p, epochs),), truth)

    return draw


def _shares(low: float, high: float, levels: int = 1) -> Draw:
    """Draw scores of questions whose probability of a correct answer, between ``low`` and ``high``, is drawn anew for
    each trial."""

    def draw(rng: Rng, n: int) -> tuple[tuple[Any, ...], float]:
        p = rng.uniform(low, high)
        return ((rng.binomial(levels, p, n) / levels,), p)

    return draw


TIMES = {1: "once", 4: "four times", 16: "16 times"}
"""How often each question is asked (epochs), in words for the names of cases."""

CASES = (
    *(
        Case("centre", name, stats.centre_interval, _centre(name))
        for name in ("normal", "lognormal", "disturbed", "heavy", "rounded", "tied", "skewed", "exponential")
    ),
    *(
        Case("rounds in turn", name, stats.rounds_interval, _rounds(name))
        for name in ("normal", "lognormal", "disturbed", "rounded", "skewed")
    ),
    *(
        Case("two runs", data, stats.welch_interval, _two(*spread))
        for data, spread in {
            "normal": ("normal", "normal"), "one spreads four times as far": ("normal", "normal", 4.0),
            "exponential": ("exponential", "exponential"), "one exponential": ("normal", "exponential"),
            "tied": ("tied", "tied"),
        }.items()
    ),
    *(
        Case("texts", f"{name}, lengths {lengths}", stats.weighted_interval, _texts(name, lengths))
        for name, lengths in (
            ("normal", "like"), ("normal", "1 to 10"), ("normal", "log-normal"), ("heavy", "1 to 10"),
            ("heavy", "log-normal"), ("skewed", "1 to 10"), ("exponential", "1 to 10"),
        )
    ),
    Case("grades", "half of the answers new", stats.graded_interval, _changes(0.5)),
    Case("grades", "a fifth new", stats.graded_interval, _changes(0.2)),
    Case("grades", "half new, in quarters", stats.graded_interval, _changes(0.5, 4)),
    Case("score", "right or wrong", stats.share_interval, _shares(0.0, 1.0)),
    Case("score", "mostly right", stats.share_interval, _shares(0.8, 1.0)),
    Case("score", "in quarters", stats.share_interval, _shares(0.1, 0.9, 4)),
    *(
        Case("score", f"{what}, {times}", stats.share_interval, _asked(epochs, again))
        for what, again in (("questions like these", False), ("these very ones", True))
        for epochs, times in TIMES.items()
    ),
    *(
        Case("grades", f"{what}, {times}", stats.change_interval, _lost(kind, size, epochs))
        for what, kind, size in (
            ("nothing lost", "some", 0.0), ("lost everywhere", "everywhere", 0.7), ("some lost", "some", 0.12),
        )
        for epochs, times in TIMES.items()
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate all cases and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=2000, help="of each cell (2000)")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args(argv)
    cases = [case for case in CASES if args.only in case.name]
    print(f"{'':46}" + "".join(f"{f'n={n}':>7}" for n in SIZES))
    facts, table = stamp(), {}
    for case in cases:
        covered = {n: coverage(case, n, args.trials) for n in SIZES}
        table[case.name] = {n: None if not count else round(share, 4) for n, (share, count) in covered.items()}
        cells = (f"{100 * share:7.1f}" if count else f"{'-':>7}" for share, count in covered.values())
        print(f"{case.name:46}{''.join(cells)}", flush=True)
    print(json.dumps({"coverage": table, "trials": args.trials, "seed": SEED, **facts}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
