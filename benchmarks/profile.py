"""Where the time of a decoded token goes, step by step: ``python -m benchmarks.profile [MODEL] [--at 2048 32768]``.

A token is one job of a few hundred steps; thread 0 notes when it begins each step, and when no pieces of the step are
left to claim. Its time until the next step begins counts for the step; the part after the last claim is "wait": for the
other threads' last pieces and the barrier. Steps of a tail are run by whichever thread finished what they need ("~" in
the list; "+" begins a phase, behind a barrier): what thread 0 waits for a tail of another thread counts for the tail.
The figures are medians over the tokens, so the sum of the parts is a little less than the median token on a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.kernels.cpu.recording import Timeline
from ds4ref.kernels.cpu.workers import Workers
from ds4ref.session.session import Session

from .depth import session_at

PRODUCTS = frozenset({"linear_rows", "expert_linear_rows", "expert_sum_rows"})
"""Names of tasks that stream weights."""


@dataclass(frozen=True)
class Profile:
    """Times of decoded tokens in seconds.

    tasks     name of each step's task
    waits     whether each step begins a phase, after a barrier (steps,)
    tails     whether each step belongs to a tail (steps,)
    wall      whole token (tokens,)
    steps     time of thread 0 from the beginning of each step to that of its next (tokens, steps)
    waiting   part of ``steps`` spent waiting for other threads (tokens, steps)
    """

    tasks: list[str]
    waits: np.ndarray
    tails: np.ndarray
    wall: np.ndarray
    steps: np.ndarray
    waiting: np.ndarray

    def besides(self) -> np.ndarray:
        """Return, for each token, the share of time (tokens,) outside phases that stream weights, and in tails.

        These are small ops, attention, indexer, Python. Steps beside a product, other than tails, count with it.
        """
        phase = np.cumsum(self.waits) - 1
        streams_weights = np.zeros(phase[-1] + 1, bool)
        for task, number in zip(self.tasks, phase, strict=True):
            streams_weights[number] |= task in PRODUCTS
        return 1 - self.steps[:, streams_weights[phase] & ~self.tails].sum(axis=1) / self.wall


def shares(times: Timeline, tails: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return thread 0's time from each step to its next, and the part of it spent waiting, each (steps,) in ticks.

    end: ticks at which the job had ended
    """
    begun, left, thread = times.began, times.exhausted, times.thread
    mine = np.flatnonzero(~tails | (thread == 0))
    mine = mine[np.argsort(begun[mine], kind="stable")]
    spent, waiting = np.zeros(len(begun), np.int64), np.zeros(len(begun), np.int64)
    spent[mine] = np.diff(np.append(begun[mine], end))
    waiting[mine] = spent[mine] - (left - begun)[mine]
    phase = np.cumsum(times.waits != 0)
    last = dict(zip(phase[mine], mine, strict=True))  # thread 0's last step of each phase, after which it waits
    reached, until = left.copy(), begun + spent
    others = np.flatnonzero(tails & (thread != 0))
    for other in others[np.argsort(begun[others], kind="stable")]:
        step = last[phase[other]]
        start, stop = max(reached[step], begun[other]), min(until[step], left[other])
        if stop > start:
            spent[other] = waiting[other] = stop - start
            spent[step] -= stop - start
            waiting[step] -= stop - start
            reached[step] = stop
    return spent, waiting


def tick_seconds(pool: Workers, seconds: float = 0.05) -> float:
    """Return the seconds per tick of the thread pool's clock; raises RuntimeError if the clock stands still."""
    first, started = pool.ticks(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        pass
    passed, ticks = time.perf_counter() - started, pool.ticks() - first
    if ticks <= 0:
        raise RuntimeError("the clock that steps are timed with stands still on this processor: nothing to profile by")
    return passed / ticks


def profile(session: Session, tokens: int, warm: int = 2) -> Profile:
    """Decode ``tokens`` tokens; return the profile of the most frequent kind, which closes no compression window.

    ``session`` must replay recordings; ``warm``: untimed tokens at the start.
    """
    ops: Any = session.model.ops
    pool = ops.workers
    rate = tick_seconds(pool)
    vocab = session.model.shape.vocab
    rows: list[tuple[Any, float, np.ndarray, np.ndarray]] = []
    for number in range(warm + tokens):
        started = time.perf_counter()
        session.eval((17 * number + 5) % vocab)
        end, wall = pool.ticks(), time.perf_counter() - started
        if session._decoder is None:
            raise ValueError("this backend does not record")
        recording = session._decoder.last
        spent, waiting = shares(recording.timeline(), recording.tails, end)
        rows.append((recording, wall, spent * rate, waiting * rate))
    kinds = [row[0] for row in rows[warm:]]
    usual = max(kinds, key=kinds.count)
    rows = [row for row in rows[warm:] if row[0] is usual]
    _, walls, steps, idle = zip(*rows, strict=True)
    waits = usual.timeline().waits != 0
    return Profile(usual.tasks, waits, usual.tails, np.array(walls), np.array(steps), np.array(idle))


def by_task(p: Profile) -> list[dict]:
    """Return the steps summed by task: rows {task, steps, us, wait_us, share}, largest first; medians over tokens."""
    steps, waiting = np.median(p.steps, axis=0), np.median(p.waiting, axis=0)
    wall, names = float(np.median(p.wall)), np.array(p.tasks)
    rows = []
    for task in dict.fromkeys(p.tasks):
        chosen = names == task
        spent = float(steps[chosen].sum())
        rows.append(
            {
                "task": task,
                "steps": int(chosen.sum()),
                "us": 1e6 * spent,
                "wait_us": 1e6 * float(waiting[chosen].sum()),
                "share": spent / wall,
            }
        )
    return sorted(rows, key=lambda row: -row["us"])


def main(argv: Sequence[str] | None = None) -> int:
    """Profile a model at each depth; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="model file (default: a slice of 4 layers with 8 experts)")
    parser.add_argument("--at", type=int, nargs="+", default=[2048], metavar="POS", help="tokens in the cache")
    parser.add_argument("--tokens", type=int, default=16, help="tokens decoded at each depth (default 16)")
    parser.add_argument("--numerics", default="ds4")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", action="store_true", help="every step, not sums by task")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    args = parser.parse_args(argv)
    if args.model is None:
        from ds4ref.nano.cache import slice_path

        args.model = slice_path(4, 8, 4096, "q2")
    profiles = []
    with Engine.open(args.model, numerics=args.numerics, threads=args.threads) as engine:
        for pos in args.at:
            p = profile(session_at(engine, pos), args.tokens)
            profiles.append(
                {"pos": pos, "ms": 1e3 * float(np.median(p.wall)), "barriers": int(p.waits.sum())}
                | {"besides": float(np.median(p.besides())), "tasks": by_task(p)}
                | {"waiting": float(np.median(p.waiting.sum(axis=1) / p.wall))}
            )
            if not args.json:
                _print(profiles[-1], p, args.steps)
    if args.json:
        print(json.dumps(profiles))
    return 0


def _print(row: dict, p: Profile, every_step: bool) -> None:
    print(
        f"at {row['pos']}: {row['ms']:.2f} ms a token, {len(p.tasks)} steps, {row['barriers']} barriers, "
        f"{row['waiting']:.1%} waiting, {row['besides']:.1%} not streaming weights"
    )
    if every_step:
        marks = np.where(p.waits, "+", np.where(p.tails, "~", " "))
        for task, mark, spent, idle in zip(
            p.tasks, marks, np.median(p.steps, axis=0), np.median(p.waiting, axis=0), strict=True
        ):
            print(f"  {mark} {task:20s} {1e6 * spent:9.1f} us {1e6 * idle:8.1f} wait")
        return
    print(f"  {'task':20s} {'steps':>5s} {'us':>10s} {'wait':>8s} {'share':>7s}")
    for line in row["tasks"]:
        print(f"  {line['task']:20s} {line['steps']:5d} {line['us']:10.1f} {line['wait_us']:8.1f} {line['share']:7.1%}")


if __name__ == "__main__":
    raise SystemExit(main())
