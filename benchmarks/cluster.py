"""What it costs to have a model's layers on several workers: bytes and time of a hop, prefill in a pipeline.

    python -m benchmarks.cluster -m SLICE [--workers 2] [--tokens 24] [--prompt 1024] [--chunk 128] [--rounds 3]

Workers are processes of this machine. Taking turns, in rounds:

decode    one worker with a thread for each core, and several with as many each: they compute in turn. "travels" is a
          token's time less what its stages computed: to the first one, between them, and back with the ranking
prefill   one worker with its share of the threads, and several with one share each, which compute at once

Medians and least of the rounds. No network is in it. A machine that does other things wakes a process late, and that
counts as travelling: the least is nearer to what a hop costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ds4ref.archs import arch_of
from ds4ref.cluster.layout import balanced
from ds4ref.cluster.open import layer_bytes
from ds4ref.engine import Engine
from ds4ref.engine_options import ClusterSettings
from ds4ref.environment import usable_cores
from ds4ref.runs.provenance import stamp
from ds4ref.weights import open_source

PATIENCE = 120.0


def layouts(path: str, workers: int) -> dict[str, str]:
    """Return the layouts by hand of one worker and of all, balanced by the bytes that a token reads."""
    with open_source(path) as source:
        shape = arch_of(source).read_shape(source)
        parts = balanced(layer_bytes(source, shape), workers)
    several = ",".join(f"{part.start}-{part.stop - 1}@{number}" for number, part in enumerate(parts))
    return {"one": f"0-{shape.n_layers - 1}@0", "several": several}


def decode(engine: Engine, tokens: int) -> dict[str, Any]:
    """Return ms of tokens: in all, computing and travelling."""
    session = engine.session(256)
    session.sync([1, 2, 3])
    for token in range(8):  # every kind of token is recorded
        session.append(token)
    times = engine.model.times  # type: ignore[attr-defined]
    times.clear()
    for token in range(tokens):
        session.append(token)
    travel = [1e3 * (seconds - compute) for seconds, compute in times]
    return {
        "token": 1e3 * statistics.median(seconds for seconds, _ in times),
        "compute": 1e3 * statistics.median(compute for _, compute in times),
        "travel": statistics.median(travel),
        "travel_least": min(travel),
    }


def prefill(engine: Engine, prompt: int, chunk: int) -> float:
    """Return seconds of a prompt."""
    ids = np.random.default_rng(1).integers(0, engine.shape.vocab, prompt).tolist()
    session = engine.session(prompt + 1)
    started = time.perf_counter()
    session.sync(ids, chunk=chunk)
    return time.perf_counter() - started


def measured(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of all rounds."""
    import distributed

    cores = usable_cores()
    rows: dict[str, list[Any]] = {}
    with distributed.LocalCluster(
        n_workers=args.workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50,
        memory_limit=0,
    ) as cluster:  # fmt: skip
        for what in ("decode", "prefill"):
            for _ in range(args.rounds):
                for name, layers in layouts(path, args.workers).items():
                    settings = ClusterSettings(cluster.scheduler_address, layers, patience=PATIENCE)
                    threads = cores if what == "decode" else max(1, cores // args.workers)
                    with Engine.open(path, numerics="ds4", threads=threads, cluster=settings) as engine:
                        prefill(engine, 2 * args.chunk, args.chunk)  # pages of the file, recordings
                        row: Any = decode(engine, args.tokens) if what == "decode" else None
                        row = prefill(engine, args.prompt, args.chunk) if row is None else row
                    rows.setdefault(f"{what} {name}", []).append(row)
    return rows


def report(rows: dict[str, list[Any]], workers: int) -> str:
    """Return the table."""
    lines = []
    for name in ("decode one", "decode several"):
        middle = {key: statistics.median(row[key] for row in rows[name]) for key in rows[name][0]}
        lines.append(
            f"{name:16} token {middle['token']:.2f} ms, computes {middle['compute']:.2f}, travels "
            f"{middle['travel']:.2f} (least {min(row['travel_least'] for row in rows[name]):.2f})"
        )
    for quantity, of in (("travel", statistics.median), ("travel_least", min)):
        one, several = (of(row[quantity] for row in rows[f"decode {name}"]) for name in ("one", "several"))
        lines.append(f"{quantity:16} {(several - one) / (workers - 1):.2f} ms a hop more than one worker's")
    one, several = rows["prefill one"], rows["prefill several"]
    quotients = [a / b for a, b in zip(one, several, strict=True)]
    lines.append(
        f"prefill          {statistics.median(one):.1f} s by one, {statistics.median(several):.1f} s by {workers}: "
        f"{statistics.median(quotients):.2f} x ({', '.join(f'{q:.2f}' for q in quotients)})"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output")
    args = parser.parse_args(argv)
    rows = measured(args.model, args)
    print(report(rows, args.workers))
    if args.output:
        with open(args.output, "w") as file:
            json.dump({"rows": rows, "stamp": stamp()}, file, default=str)
    return 0


if __name__ == "__main__":
    sys.exit(main())
