"""How a decoded token scales with threads, what a barrier costs, and what both say about larger machines.

    python -m benchmarks.threads -m MODEL [--threads 1 2 4 8] [--at 2048] [-o FILE]
    python -m benchmarks.threads --predict 8 16 32 64 --read-gbs 200 --barrier-us 1.0 0.08

Per number of threads, which take turns in rounds: milliseconds of a token (median and quartiles over the rounds); a
barrier, in microseconds: what a phase with one item for each thread takes longer than the item alone, in jobs of 500
phases less jobs of 100; "uneven", the share of a token between the first and the last thread's finding nothing more to
claim, summed over its phases; "waiting", the share that threads spend in neither claimed pieces nor tails, mean over
threads. More threads than cores are marked "over": then a barrier takes what the scheduler takes. A thread that other
programs keep from its core counts, too: measure on an idle machine.

Also told: how much of the mapped model lies in huge pages.

``--predict`` puts together, from the steps of a token on one thread here, a token of the same layers on a machine whose
memory reads ``--read-gbs`` and whose barrier costs A + B * threads microseconds (``--barrier-us A B``); ``predicted``
states the assumptions. It leaves out NUMA: memory of another node counts like the own one's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.environment import usable_cores
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu import tasktable as t
from ds4ref.kernels.cpu.abi import BLOCK_BYTES, SLOT, STEP_BYTES, STEP_CHUNK, STEP_MEMBERS, STEP_UNITS, Step, Task
from ds4ref.kernels.cpu.recording import Recording, Timeline
from ds4ref.runs.provenance import stamp
from ds4ref.session.session import Session

from .depth import session_at
from .profile import tick_seconds
from .timing import interleave

PHASES = 100, 500
"""Phases of the two jobs whose difference in time is that of their barriers."""


def barriers(threads: int, phases: int) -> Recording:
    """Return a recording of ``phases`` phases in which each thread has a few microseconds of arithmetic."""
    recording, C = CPU(threads).record(), 4
    mix, scale, base = np.zeros((threads, C * (2 + C)), np.float32), np.ones(3, np.float32), np.ones(24, np.float32)
    for _ in range(phases):
        # the next step reads what lies where this one writes, but not in the same pieces: threads have to meet
        pre, post, comb = (recording.empty(*shape) for shape in ((threads, C), (threads, C), mix.shape))
        values = *map(recording.at, (mix, scale, base, pre, post, comb)), C, 20, 1e-6
        recording.run([Step(t.HC_SPLIT, threads, 1, values)])
        mix = comb
    recording.seal()
    return recording


def barrier_us(counts: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Return microseconds of a barrier by number of threads, one for each round: what a phase of one item for each
    thread takes longer than the item takes on one thread."""

    def arm(threads: int) -> Any:
        few, many = (barriers(threads, phases) for phases in PHASES)

        def once() -> float:
            spent = []
            for recording in (few, many):
                times = []
                for _ in range(5):
                    started = time.perf_counter()
                    recording.replay()
                    times.append(time.perf_counter() - started)
                spent.append(min(times))
            return 1e6 * (spent[1] - spent[0]) / (PHASES[1] - PHASES[0])

        return once

    wanted = [1, *(threads for threads in counts if threads > 1)]
    samples = interleave({str(threads): arm(threads) for threads in wanted}, rounds)
    return {threads: differences(samples[str(threads)], samples["1"]) for threads in wanted}


def differences(values: list[float], alone: list[float]) -> list[float]:
    """Return the differences of each round."""
    return [value - one for value, one in zip(values, alone, strict=True)]


@dataclass(frozen=True)
class Structure:
    """How the steps of a recording are grouped.

    heads   first step of each group that threads claim
    phases  number of each step's phase (steps,)
    tails   whether each step belongs to a tail (steps,)
    shares  pieces into which each step falls (steps,); of tails 1
    bytes   bytes of weights that each step reads (steps,)
    """

    heads: np.ndarray
    phases: np.ndarray
    tails: np.ndarray
    shares: np.ndarray
    bytes: np.ndarray


def structure(recording: Recording) -> Structure:
    """Return the structure of a recording."""
    count = recording.length
    words = recording._table.view(np.int64)
    steps = words[: count * STEP_BYTES // SLOT].reshape(count, -1)
    tails, heads, shares, at = recording.tails, [], np.ones(count), 0
    while at < count:
        end = at + 1 + int(steps[at, STEP_MEMBERS // SLOT])
        if not tails[at]:
            heads.append(at)
            shares[at:end] = math.ceil(steps[at, STEP_UNITS // SLOT] / steps[at, STEP_CHUNK // SLOT])
        at = end
    phases = np.cumsum(recording.timeline().waits != 0) - 1
    sizes = np.zeros(count)
    for number, name in enumerate(recording.tasks):
        block = (count * STEP_BYTES + number * BLOCK_BYTES) // SLOT
        task = Task.registry[name]
        values = {field: int(words[block + i]) for i, (field, _) in enumerate(task.fields)}
        if "out_rows" in values:
            sizes[number] = values["row_bytes"] * values["out_rows"]
        elif "expert_rows" in values:  # each expert that a token chose, once
            used = values["K"] * values.get("T", 1)
            sizes[number] = values["row_bytes"] * values["expert_rows"] * used
    return Structure(np.array(heads), phases, tails, shares, sizes)


@dataclass(frozen=True)
class Waiting:
    """Shares of a token's time: ``uneven`` and ``waiting`` as in the module's docstring."""

    uneven: float
    waiting: float


def waiting(times: Timeline, trace: np.ndarray, shape: Structure) -> Waiting:
    """Return how long threads waited in a replay that filled ``trace`` (threads, steps, 2), zeros before."""
    last = np.append(np.flatnonzero(np.diff(shape.phases[shape.heads])), len(shape.heads) - 1)
    ends = shape.heads[last]  # the last group of each phase
    begins = shape.heads[np.append(0, last[:-1] + 1)]
    left = trace[:, ends, 1].astype(float)
    left[left == 0] = np.nan  # a thread that came later
    end = max(np.nanmax(left), float(times.exhausted.max()))
    wall = end - trace[0, 0, 0]
    following = np.column_stack([trace[:, begins[1:], 0].astype(float), np.full(len(trace), end)])
    following[following == 0] = np.nan
    during = np.minimum(left, np.nanmin(following, axis=0))  # a late thread finds phases long over
    uneven = np.nansum(np.nanmax(during, axis=0) - np.nanmin(during, axis=0)) / wall
    busy = (trace[:, shape.heads, 1] - trace[:, shape.heads, 0]).sum(axis=1).astype(float)
    for thread in range(len(trace)):
        ran = shape.tails & (times.thread == thread)
        busy[thread] += (times.exhausted - times.began)[ran].sum()
    there = end - trace[:, shape.heads[0], 0]
    return Waiting(float(uneven), float(np.mean((there - busy)[trace[:, shape.heads[0], 0] > 0]) / wall))


def scaling(session: Session, counts: Sequence[int], rounds: int, tokens: int) -> dict[int, dict[str, list[float]]]:
    """Return seconds, uneven and waiting shares of tokens by number of threads, one of each for each round."""
    result: dict[int, dict[str, list[float]]] = {n: {"seconds": [], "uneven": [], "waiting": []} for n in counts}
    ops, vocab = session.model.ops, session.model.shape.vocab
    before = ops.threads
    try:
        for number in range(rounds + 1):
            for count in counts if number % 2 else counts[::-1]:
                ops.threads = count
                walls: list[float] = []
                for token in range(2 + tokens):
                    while session.pos % 4 == 3:  # another kind of token
                        session.eval(1)
                    started = time.perf_counter()
                    session.eval((17 * token + 5) % vocab)
                    walls.append(time.perf_counter() - started)
                recording = session._decoder.last if session._decoder else None
                if recording is None:
                    raise ValueError("this backend does not record")
                trace = np.zeros((count, recording.length, 2), np.int64)
                recording.replay(trace)
                if number == 0:  # to warm up
                    continue
                row = result[count]
                row["seconds"].append(float(np.median(walls[2:])))
                if count > 1:
                    shares = waiting(recording.timeline(), trace, structure(recording))
                    row["uneven"].append(shares.uneven)
                    row["waiting"].append(shares.waiting)
    finally:
        ops.threads = before
    return result


@dataclass(frozen=True)
class Machine:
    """A machine to predict for: ``read_gbs`` of all threads, a barrier of ``fixed`` + ``each`` * threads us."""

    read_gbs: float
    fixed: float
    each: float


def predicted(seconds: np.ndarray, shape: Structure, threads: int, machine: Machine) -> dict[str, float]:
    """Return milliseconds of a token and of its parts on ``threads`` threads of a machine.

    seconds: of each step on one thread here (steps,). Assumptions: a core there takes for a piece what one takes here;
    steps are grouped as for two threads; pieces of a step go evenly to threads, the last round being whole (8 pieces on
    5 threads take two rounds); weights come at the machine's full rate, or as one core decodes them, whichever is
    slower; steps of tails run one after the other and nothing hides them; all meet once a phase.
    """
    parts = {"weights": 0.0, "small": 0.0, "tails": 0.0, "barriers": 0.0}
    for phase in range(int(shape.phases[-1]) + 1):
        here = shape.phases == phase
        streams = here & (shape.bytes > 0) & ~shape.tails
        alone = sum(seconds[streams]) / threads
        parts["weights"] += max(alone, float(shape.bytes[streams].sum()) / (1e9 * machine.read_gbs))
        small = here & ~streams & ~shape.tails
        parts["small"] += float((seconds * np.ceil(shape.shares / threads) / shape.shares)[small].sum())
        parts["tails"] += float(seconds[here & shape.tails].sum())
        parts["barriers"] += 1e-6 * (machine.fixed + machine.each * threads)
    return {"ms": 1e3 * sum(parts.values())} | {f"{name}_ms": 1e3 * value for name, value in parts.items()}


def one_thread(session: Session, tokens: int) -> tuple[np.ndarray, Structure]:
    """Return the seconds of each step on one thread, the least of ``tokens`` replays, and the structure."""
    ops: Any = session.model.ops
    before, ops.threads = ops.threads, 1
    try:
        while session.pos % 4 == 3:
            session.eval(1)
        session.eval(5)
        recording = session._decoder.last if session._decoder else None
        if recording is None:
            raise ValueError("this backend does not record")
        rate, rows = tick_seconds(ops.workers), []
        for _ in range(tokens):
            recording.replay()
            times = recording.timeline()
            rows.append((times.exhausted - times.began) * rate)
        return np.min(rows, axis=0), structure(recording)
    finally:
        ops.threads = before


def huge_pages(path: str) -> dict[str, int] | None:
    """Return kilobytes of the mappings of a file that are resident, and of these in huge pages; None where the system
    does not say."""
    wanted, result, inside = Path(path).resolve(), {"resident_kb": 0, "huge_kb": 0}, False
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        first, *rest = line.split()
        if not first.endswith(":"):  # the beginning of a mapping: addresses, rights, offset, device, inode, path
            inside = len(rest) > 4 and Path(line.split(maxsplit=5)[5]) == wanted
        elif inside and first == "Rss:":
            result["resident_kb"] += int(rest[0])
        elif inside and first in ("FilePmdMapped:", "AnonHugePages:", "ShmemPmdMapped:"):
            result["huge_kb"] += int(rest[0])
    return result


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Return median and quartiles in words."""
    if not values:
        return "-"
    low, middle, high = (scale * x for x in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{middle:.2f} ({low:.2f} - {high:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.threads", description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="model file (default: a slice of 4 layers with 8 experts)")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: powers of two to twice the cores")
    parser.add_argument("--at", type=int, default=2048, metavar="POS", help="tokens in the cache")
    parser.add_argument("--tokens", type=int, default=6, help="tokens of a round (default 6)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--numerics", default="ds4")
    parser.add_argument("--predict", type=int, nargs="*", default=[], metavar="N", help="numbers of threads to predict")
    parser.add_argument("--read-gbs", type=float, default=200.0, help="read bandwidth of the machine to predict for")
    parser.add_argument("--barrier-us", type=float, nargs=2, default=[1.0, 0.08], metavar=("A", "B"))
    parser.add_argument("-o", "--output", type=Path, help="write JSON")
    args = parser.parse_args(argv)
    if args.model is None:
        from ds4ref.nano.cache import slice_path

        args.model = slice_path(4, 8, 4096, "q2")
    cores = usable_cores()
    counts = args.threads or [1 << i for i in range((2 * cores).bit_length())]
    document: dict[str, Any] = {"stamp": stamp(), "cores": cores, "at": args.at, "rows": [], "predicted": []}
    meetings = barrier_us(counts, args.rounds)
    with Engine.open(args.model, numerics=args.numerics) as engine:
        session = session_at(engine, args.at)
        measured = scaling(session, counts, args.rounds, args.tokens)
        seconds, shape = one_thread(session, args.tokens)
        document["huge_pages"] = huge_pages(args.model)
    document["phases"] = int(shape.phases[-1]) + 1
    print(
        f"{len(shape.phases)} steps, {document['phases']} phases a token; {cores} cores; huge pages of the model: ",
        end="",
    )
    pages = document["huge_pages"]
    print("unknown" if pages is None else f"{pages['huge_kb']} of {pages['resident_kb']} kB")
    print(f"  {'threads':>7s} {'ms a token':>26s} {'barrier us':>24s} {'uneven':>20s} {'waiting':>20s}")
    for count in counts:
        row = measured[count] | {"barrier_us": meetings[count]}
        over = " over" if count > cores else ""
        document["rows"].append({"threads": count, "over": count > cores} | row)
        print(
            f"  {count:7d} {spread(row['seconds'], 1e3):>26s} {spread(row['barrier_us']):>24s}"
            f" {spread(row['uneven']):>20s} {spread(row['waiting']):>20s}{over}"
        )
    for count in args.predict:
        parts = predicted(seconds, shape, count, Machine(args.read_gbs, *args.barrier_us))
        document["predicted"].append({"threads": count, "read_gbs": args.read_gbs} | parts)
        told = ", ".join(f"{name.removesuffix('_ms')} {value:.2f}" for name, value in parts.items() if name != "ms")
        print(f"  predicted for {count} threads: {parts['ms']:.2f} ms ({told})")
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
