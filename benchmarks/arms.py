"""Can ds4-bench be trusted? On the random model: what its loop costs, how often two equal arms are declared
different, how often a known slowdown is detected.

    python -m benchmarks.arms                        40 trials of each, at most 20 s long
    python -m benchmarks.arms --trials 5 --slower 10

A trial is a whole run of two interleaved lanes on a short sweep, with ``--detect`` and ``--budget`` as in
``ds4-bench``: a pilot, then as many rounds as it asks for, or a refusal that says what could be detected; judged as
``ds4-bench`` does. Both lanes use one engine; the slower one busy-waits after every step, in proportion to the time the
step took. Trials are independent; equal and slowed ones alternate, so that both see the same machine. ``--clock cpu``
measures CPU time of this process (use one thread), which excludes other load on a shared machine. The overhead is
always CPU time.

Prints a table, and a line of JSON. Does not cover prompts, files and the store, which no timed window includes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from ds4ref.engine import Engine
from ds4ref.environment import machine
from ds4ref.errors import DataError
from ds4ref.reports.compare import overall
from ds4ref.runs.provenance import stamp
from ds4ref.runs.speed import in_turn, judge, per_cent
from ds4ref.runs.stats import centre_interval, wilson
from ds4ref.speed_bench import Lane, Measurement, Plan, sweep
from ds4ref.speed_bench.local import LocalSource
from ds4ref.speed_bench.prompt import PromptText
from ds4ref.speed_bench.repetitions import PILOT, SURE, pilot, shrinks
from ds4ref.speed_bench.samples import seconds
from ds4ref.speed_bench.source import Source

DEPTHS = [24, 48, 72, 96]
STEPS = 16


class Slowed:
    """A slowed session: every prefill and decode step is followed by a busy wait of ``share`` times its duration."""

    def __init__(self, session: Any, share: float):
        self.session, self.share = session, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def sync(self, *args: Any, **options: Any) -> None:
        """Prefill as the session does, then wait."""
        self._waiting(self.session.sync, *args, **options)

    def append(self, token: int) -> None:
        """Run a decode step as the session does, then wait."""
        self._waiting(self.session.append, token)

    def _waiting(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        clock = sweep.time.perf_counter
        start = clock()
        result = work(*args, **options)
        end = clock()
        end += self.share * (end - start)
        while clock() < end:
            pass
        return result


class SlowedEngine:
    """An engine whose sessions are ``Slowed``; with share 0, an arm of equal speed on the same code path."""

    def __init__(self, engine: Engine, share: float):
        self.engine, self.share = engine, share

    def session(self, ctx: int) -> Slowed:
        """Return a new slowed session with a context of ``ctx`` tokens."""
        return Slowed(self.engine.session(ctx), self.share)


class Trial(Measurement):
    """A run that measures ``engine`` (A) against a slowed copy of it (B)."""

    def __init__(self, engine: Engine, prompt: PromptText, plan: Plan, slower: float):
        super().__init__(plan, say=lambda line: None)
        self.engines = [SlowedEngine(engine, 0.0), SlowedEngine(engine, 1 / (1 - slower) - 1)]
        self.prompt = prompt

    def open(self, stack: ExitStack) -> list[Source]:
        """Return the two sources, which share one engine already open."""
        return [LocalSource(engine, self.plan, self.prompt, {}) for engine in self.engines]  # type: ignore[arg-type]


def trial(engine: Engine, prompt: PromptText, plan: Plan, slower: float) -> tuple[dict[str, str], float, int]:
    """Run one comparison; return (verdicts, detectable, rounds).

    verdicts     by metric and "overall"; all "refused" if the budget is too small, or the machine too busy
    detectable   smallest difference in per cent that the run can detect, infinite on a machine that is too busy
    rounds       number of rounds

    ``slower``: share of speed by which B is slower.
    """
    run = Trial(engine, prompt, plan, slower)
    try:
        run.execute()
    except DataError:
        least = max(pilot(*(lane.samples for lane in run.lanes)).values(), default=math.inf) * SURE
        rounds = max(PILOT, int(plan.budget * PILOT / sum(seconds(e) for lane in run.lanes for e in lane.samples)))
        return dict.fromkeys(("overall", "prefill", "decode"), "refused"), 100 * least * shrinks(rounds), PILOT
    intervals = {name: per_cent(i) for name, i in in_turn(run.lanes[0].samples, run.lanes[1].samples).items()}
    verdicts = {name: judge(interval) for name, interval in intervals.items()}
    least = max(interval.detectable or 0.0 for interval in intervals.values())
    return {"overall": overall(list(verdicts.values())), **verdicts}, least, run.reps


def overhead(engine: Engine, tokens: Sequence[int], eos: int, pairs: int) -> list[float]:
    """Return, for each pair of runs, the CPU time of the harness's decode loop over that of a bare loop.

    The loops are interleaved and start from the same snapshot; they are timed from outside, since a row's own figures
    exclude the time between its steps.
    """
    clock = time.process_time
    session = engine.session(DEPTHS[-1] + STEPS + 1)
    session.sync(list(tokens[: DEPTHS[-1]]))
    snapshot = session.snapshot()

    def bare() -> float:
        start = clock()
        for _ in range(STEPS):
            session.append(session.argmax(exclude=eos))
        return clock() - start

    def harness() -> float:
        start = clock()
        sweep.decode(session, session.pos, STEPS, eos)
        return clock() - start

    ratios = []
    for number in range(pairs):
        spent = {}
        for loop in (bare, harness) if number % 2 == 0 else (harness, bare):
            session.restore(snapshot)
            spent[loop] = loop()
        ratios.append(spent[harness] / spent[bare])
    return ratios


def shares(verdicts: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """Return how many of ``verdicts`` are among ``wanted``, as a share with Wilson's 95 % interval."""
    hits = sum(verdict in wanted for verdict in verdicts)
    interval = wilson(hits, len(verdicts))
    return {"of": len(verdicts), "hits": hits, "share": interval.estimate, "low": interval.low, "high": interval.high}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table and JSON; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=40, help="of equal arms and of slowed ones (40)")
    parser.add_argument("--slower", type=float, default=3.0, help="per cent of speed that B lacks (3)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a trial at most (20)")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of loops for the overhead (1000)")
    parser.add_argument("-t", "--threads", type=int, default=1, help="threads (1)")
    parser.add_argument("--minutes", type=float, default=9.5, help="stop trials after so many (9.5)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="wall, or CPU time (wall)")
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        sweep.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    from ds4ref.nano import random_path

    begun = time.monotonic()
    plan = Plan(
        (Lane(name="A"), Lane(name="B")), depths=tuple(DEPTHS), gen_tokens=STEPS, detect=args.slower,
        budget=args.budget, warmup=False,
    )  # fmt: skip
    with Engine.open(random_path(), numerics="ds4", threads=args.threads) as engine:
        prompt = PromptText(plan)
        prompt.use(random_path())
        tokens, eos = prompt.tokens(plan.deepest), prompt.eos
        sweep.warm_up(engine.session(plan.context), tokens, eos)
        ratios = overhead(engine, tokens, eos, args.pairs)
        equal: list[dict[str, str]] = []
        slowed: list[dict[str, str]] = []
        least, rounds = [], []
        while len(slowed) < args.trials and time.monotonic() - begun < 60 * args.minutes:
            for into, slower in ((equal, 0.0), (slowed, args.slower / 100)):
                verdicts, detectable, round_count = trial(engine, prompt, plan, slower)
                into.append(verdicts)
                least.append(detectable)
                rounds.append(round_count)
    result: dict[str, Any] = {"budget_s": args.budget}
    if ratios:
        cost = centre_interval(ratios)
        low, middle, high = (100 * (ratio - 1) for ratio in (cost.low, cost.estimate, cost.high))
        print(f"CPU time of decode through the harness against the bare loop: {middle:+.2f} % (95 % interval "
              f"{low:+.2f} to {high:+.2f}, {len(ratios)} pairs)")  # fmt: skip
        result["overhead"] = {"centre": middle, "low": low, "high": high, "pairs": len(ratios)}
    outcomes = {
        "equal, declared different": (equal, ("better", "worse", "mixed")),
        "slower, found": (slowed, ("worse",)),
        "slower, refused": (slowed, ("refused",)),
        "slower, declared otherwise": (slowed, ("better", "same", "mixed")),
    }
    for name, (trials, wanted) in outcomes.items():
        for metric in ("overall", "prefill", "decode") if trials else ():
            share = shares([v[metric] for v in trials], wanted)
            result[f"{name}, {metric}"] = share
            print(f"{name:26} {metric:8} {share['hits']:3} of {share['of']:3} = {share['share']:6.1%} "
                  f"(95 % interval {share['low']:.1%} to {share['high']:.1%})")  # fmt: skip
    if least := [detectable for detectable in least if math.isfinite(detectable)]:
        result |= {"found_from_percent": statistics.median(least), "rounds": statistics.median(rounds)}
        print(f"a trial finds {result['found_from_percent']:.1f} % (median), in {result['rounds']:.0f} rounds")
    spent = round(time.monotonic() - begun)
    print(f"{spent} s, {args.threads} thread(s), {args.clock} clock, load {machine()['load']}")
    print(
        json.dumps(
            {
                **result,
                "slower": args.slower,
                "clock": args.clock,
                "seconds": spent,
                **stamp(),
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
