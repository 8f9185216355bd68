"""How large a loss does a comparison of two evals find? Simulated on questions whose difficulty is known.

    python -m benchmarks.power                       93 questions, 2,000 trials, about a minute
    python -m benchmarks.power --questions 25

Both engines are asked the same questions 1, 4 or 16 times; B knows less (``asked``: a little everywhere, or some of the
questions not at all). ``greedy``: asked once, and a share of the answers is another one for no reason (kernels,
batching). A line says how often B = A is called better or worse, the loss (points of score, over all questions that
there might be) that is called worse in 80 % of runs, and the smallest difference that a comparison of B = A with
itself claims it could have found (``Interval.detectable``).

Leaves out: losses that change how long an answer is, and so whether its budget suffices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

import numpy as np

from ds4ref.runs import scored, speed, stats
from ds4ref.runs.provenance import stamp

from . import asked
from .asked import Rng

SEED = 20261123
EPOCHS = (1, 4, 16)
NOISE = (0.0, 0.05, 0.1, 0.2)
"""Shares of greedy answers that change for no reason."""

Trial = Callable[[Rng, int, float], np.ndarray]
"""Changes (n,) of n questions under a loss of some size."""


def sampled(kind: str, epochs: int) -> Trial:
    """Answers drawn anew, so often for each question."""
    loss = asked.LOSSES[kind]

    def trial(rng: Rng, n: int, size: float) -> np.ndarray:
        p = asked.questions(rng, n)
        return asked.scores(rng, loss(rng, p, size), epochs) - asked.scores(rng, p, epochs)

    return trial


def greedy(noise: float) -> Trial:
    """One answer, the same for both but for a share ``noise`` drawn anew; of the right ones ``size`` are lost."""

    def trial(rng: Rng, n: int, size: float) -> np.ndarray:
        p = asked.questions(rng, n)
        a = asked.scores(rng, p, 1)
        b = np.where(rng.random(n) < noise, asked.scores(rng, p, 1), a)
        return np.where(rng.random(n) < size, 0.0, b) - a

    return trial


def verdicts(trial: Trial, n: int, size: float, trials: int) -> tuple[float, float, float]:
    """Shares called worse and better, and the mean of what was claimed to be detectable (points)."""
    rng = np.random.default_rng([SEED, n])
    worse = better = 0
    claimed = []
    for _ in range(trials):
        i = stats.change_interval(trial(rng, n, size)).scaled(100)
        found = speed.judge(i, scored.MARGIN)
        worse, better = worse + (found == speed.WORSE), better + (found == speed.BETTER)
        claimed.append(i.detectable or 0.0)
    return worse / trials, better / trials, float(np.mean(claimed))


def detectable(trial: Trial, n: int, most: float, trials: int, power: float = stats.POWER) -> float:
    """The size of a loss that is called worse with this probability, by halving [0, ``most``]."""
    low, high = 0.0, most
    for _ in range(11):
        middle = (low + high) / 2
        low, high = (low, middle) if verdicts(trial, n, middle, trials)[0] >= power else (middle, high)
    return (low + high) / 2


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--questions", type=int, default=93, help="how many (93)")
    parser.add_argument("--trials", type=int, default=2000, help="of each size of a loss (2000)")
    args = parser.parse_args(argv)
    n = args.questions
    lines: list[tuple[str, Trial, float, Callable[[float], float]]] = [
        (f"loss {kind}, {epochs} epoch{'' if epochs == 1 else 's'}", sampled(kind, epochs), most,
         lambda size, kind=kind: asked.mean_loss(asked.LOSSES[kind], size))  # type: ignore[misc]
        for kind, most in (("everywhere", 8.0), ("some", 1.0))
        for epochs in EPOCHS
    ]  # fmt: skip
    share = asked.ENDS[0] / sum(asked.ENDS)
    lines += [(f"greedy, {noise:.0%} noise", greedy(noise), 1.0, lambda size: size * share) for noise in NOISE]
    print(f"{'':28}{'false worse':>13}{'false better':>13}{'found in 80 %':>15}{'claimed':>9}")
    table = {}
    for name, trial, most, loss in lines:
        worse, better, claimed = verdicts(trial, n, 0.0, args.trials)
        found = 100 * loss(detectable(trial, n, most, args.trials))
        table[name] = {"worse": worse, "better": better, "loss": round(found, 2), "claimed": round(claimed, 2)}
        print(f"{name:28}{100 * worse:11.1f} %{100 * better:11.1f} %{found:15.1f}{claimed:9.1f}", flush=True)
    print(json.dumps({"power": table, "questions": n, "trials": args.trials, "seed": SEED, **stamp()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
