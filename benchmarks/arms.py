"""Can ds4-bench be believed? On the real embedded model: what its loop costs, how often two equal arms are declared
different, how often a known slowdown is found.

    python -m benchmarks.arms                        40 trials of each, about eight minutes
    python -m benchmarks.arms --trials 5 --slower 10

A trial is a whole ``ds4-bench --arm --arm`` with its defaults (five rounds, in turn) on a short walk, judged by
``ds4-report compare`` with its defaults. Both arms are one engine; the slower one waits in a busy loop after every
step, in proportion to the time the step took. Trials are independent; equal and slowed ones alternate, so that both
meet the same machine. ``--clock cpu`` times in CPU time of this process (use one thread): what else runs on a shared
machine then takes no part, and what is left is about what a bench of one's own would show.

Puts out a table, and a line of JSON. Leaves out: prompts, files and the store, which no window holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from speed_bench.rounds import Arm, rounds

from ds4ref.engine import Engine
from ds4ref.environment import machine
from ds4ref.runs.provenance import stamp
from ds4ref.runs.stats import wilson
from ds4ref.runs.store import Run
from reports.compare import compare
from reports.sources import Measured
from speed_bench import sweep
from speed_bench.prompt import prose_tokens
from speed_bench.samples import Sample, sample

DEPTHS = list(range(48, 385, 48))
STEPS = 12
REPS = 5


class Slowed:
    """A session that takes longer: every prefill and every step is followed by a busy wait of ``share`` of its time."""

    def __init__(self, session: Any, share: float):
        self.session, self.share = session, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def sync(self, *args: Any, **options: Any) -> None:
        """As the session's."""
        self._waiting(self.session.sync, *args, **options)

    def eval(self, token: int) -> Any:
        """As the session's."""
        return self._waiting(self.session.eval, token)

    def _waiting(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        clock = sweep.time.perf_counter
        start = clock()
        found = work(*args, **options)
        end = clock()
        end += self.share * (end - start)
        while clock() < end:
            pass
        return found


class SlowedEngine:
    """An engine whose sessions are ``Slowed``; share 0 for an equal arm that goes the same way."""

    def __init__(self, engine: Engine, share: float):
        self.engine, self.share = engine, share

    def session(self, ctx: int) -> Slowed:
        """A new session."""
        return Slowed(self.engine.session(ctx), self.share)


def trial(engine: Engine, tokens: Sequence[int], eos: int, slower: float) -> tuple[dict[str, str], float]:
    """Verdicts of one comparison by metric (and "overall"), and the spread of decode's ratio of two adjacent cells
    (median absolute deviation, as a standard deviation in per cent). ``slower`` is the share of speed that B lacks."""
    arms = [Arm("A", SlowedEngine(engine, 0.0)), Arm("B", SlowedEngine(engine, 1 / (1 - slower) - 1))]  # type: ignore[arg-type]
    found: list[list[Sample]] = [[], []]
    for index, row in rounds(arms, tokens, DEPTHS, STEPS, eos, ctx=DEPTHS[-1] + STEPS + 1, reps=REPS):
        found[index].append(sample(row))
    facts = {"arms": {"group": "one"}, "model": {"sha256": "same"}, "prompt_sha256": "same", "numerics": "ds4"}
    a, b = (
        Measured(Run(0, name, "bench", "", name, "complete", facts, (), len(rows)), rows)
        for name, rows in zip("AB", found, strict=True)
    )
    done = compare(a, b)
    ratios = [100 * (two["gen_tps"] / one["gen_tps"] - 1) for one, two in zip(*found, strict=True)]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return {"overall": done.verdict} | {f.metric: f.verdict for f in done.findings}, spread


def overhead(engine: Engine, tokens: Sequence[int], eos: int, pairs: int) -> list[float]:
    """Decode speed of the harness's loop over that of the bare one, in turn, from the same snapshot. Timed from
    outside: what a row reports leaves out even what lies between its steps."""
    clock = sweep.time.perf_counter
    session = engine.session(DEPTHS[-1] + STEPS + 1)
    session.sync(list(tokens[: DEPTHS[-1]]))
    snapshot = session.snapshot()

    def bare() -> float:
        start = clock()
        for _ in range(STEPS):
            session.eval(session.argmax(exclude=eos))
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
        ratios.append(spent[bare] / spent[harness])
    return ratios


def shares(verdicts: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """How many of ``verdicts`` are among ``wanted``, with Wilson's 95 % interval."""
    hits = sum(verdict in wanted for verdict in verdicts)
    interval = wilson(hits, len(verdicts))
    return {"of": len(verdicts), "hits": hits, "share": interval.estimate, "low": interval.low, "high": interval.high}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """95 % interval (by order statistics) around the median: low, median, high."""
    ordered = sorted(values)
    half, middle = 0.98 * len(ordered) ** 0.5, (len(ordered) - 1) / 2
    first, last = max(0, int(middle - half)), min(len(ordered) - 1, int(middle + half + 1))
    return ordered[first], statistics.median(ordered), ordered[last]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=40, help="of equal arms and of slowed ones (40)")
    parser.add_argument("--slower", type=float, default=3.0, help="per cent of speed that B lacks (3)")
    parser.add_argument("--pairs", type=int, default=400, help="pairs of loops for the overhead (400)")
    parser.add_argument("-t", "--threads", type=int, default=1, help="threads (1)")
    parser.add_argument("--minutes", type=float, default=9.5, help="stop trials after so many (9.5)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="wall, or CPU time (wall)")
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        sweep.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    from ds4ref.nano import embedded_path

    begun = time.monotonic()
    with Engine.open(embedded_path(), numerics="ds4", threads=args.threads) as engine:
        tokens, eos = prose_tokens(engine.tokenizer, DEPTHS[-1]), engine.tokenizer.eos
        sweep.warm_up(engine.session(DEPTHS[-1] + STEPS + 1), tokens, eos)
        ratios = overhead(engine, tokens, eos, args.pairs)
        equal: list[dict[str, str]] = []
        slowed: list[dict[str, str]] = []
        spreads = []
        while len(slowed) < args.trials and time.monotonic() - begun < 60 * args.minutes:
            for into, slower in ((equal, 0.0), (slowed, args.slower / 100)):
                verdicts, spread = trial(engine, tokens, eos, slower)
                into.append(verdicts)
                spreads.append(spread)
    low, middle, high = (100 * (ratio - 1) for ratio in median_interval(ratios))
    print(f"decode through the harness against the bare loop: {middle:+.2f} % (95 % interval {low:+.2f} to "
          f"{high:+.2f}, {len(ratios)} pairs)")  # fmt: skip
    result: dict[str, Any] = {"overhead": {"median": middle, "low": low, "high": high, "pairs": len(ratios)}}
    said = {"equal, declared different": (equal, ("better", "worse", "mixed")), "slower, found": (slowed, ("worse",))}
    for name, (trials, wanted) in said.items():
        for metric in ("overall", "prefill", "decode") if trials else ():
            found = shares([v[metric] for v in trials], wanted)
            result[f"{name}, {metric}"] = found
            print(f"{name:26} {metric:8} {found['hits']:3} of {found['of']:3} = {found['share']:6.1%} "
                  f"(95 % interval {found['low']:.1%} to {found['high']:.1%})")  # fmt: skip
    if spreads:
        quartiles = statistics.quantiles(spreads, n=4)
        result["noise"] = quartiles[1]
        low, middle, high = quartiles
        print(f"noise of a decode ratio of two adjacent cells: {middle:.2f} % (middle half {low:.2f} to {high:.2f})")
    seconds = round(time.monotonic() - begun)
    print(f"{seconds} s, {args.threads} thread(s), {args.clock} clock, load {machine()['load']}")
    print(
        json.dumps(
            {
                **result,
                "slower": args.slower,
                "clock": args.clock,
                "seconds": seconds,
                **stamp(),
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
