"""What it costs to have a model's layers on several workers: bytes and time of a hop, prefill in a pipeline.

    python -m benchmarks.cluster -m SLICE [--rounds 3] [--json]

Workers are processes of this machine. Taking turns, in rounds:

decode    one worker with a thread for each core, and several with as many each: they compute in turn. "travels" is a
          token's time less what its stages computed: to the first one, between them, and back with the ranking
prefill   one worker with its share of the threads, and several with one share each, which compute at once

Medians and least of the rounds. No network is in it. A machine that does other things wakes a process late, and that
counts as travelling: the least is nearer to what a hop costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ds4ref.archs import arch_of
from ds4ref.cluster.layout import balanced
from ds4ref.cluster.open import layer_bytes
from ds4ref.engine import Engine
from ds4ref.engine_options import ClusterSettings
from ds4ref.environment import usable_cores
from ds4ref.weights import open_source

from .harness import Row, add_json, ratios, row, show

PATIENCE = 120.0
WORKERS, TOKENS, PROMPT, CHUNK = 2, 24, 1024, 128


def layouts(path: str, workers: int) -> dict[str, str]:
    """Return, for one worker and for all of them, which layers each has, balanced by the bytes that a token reads."""
    with open_source(path) as source:
        shape = arch_of(source).read_shape(source)
        parts = balanced(layer_bytes(source, shape), workers, shape.starts)
    several = ",".join(f"{part.start}-{part.stop - 1}@{number}" for number, part in enumerate(parts))
    return {"one": f"0-{shape.n_layers - 1}@0", "several": several}


def decode(engine: Engine) -> dict[str, Any]:
    """Return the times of decoded tokens in ms: in total, for computing, and for travelling between workers."""
    session = engine.session(256)
    session.sync([1, 2, 3])
    for token in range(8):  # so that each kind of pass has been recorded before tokens are timed
        session.append(token)
    times = engine.model.times  # type: ignore[attr-defined]
    times.clear()
    for token in range(TOKENS):
        session.append(token)
    travel = [1e3 * (seconds - compute) for seconds, compute in times]
    return {
        "token": 1e3 * statistics.median(seconds for seconds, _ in times),
        "compute": 1e3 * statistics.median(compute for _, compute in times),
        "travel": statistics.median(travel),
        "travel_least": min(travel),
    }


def prefill(engine: Engine, prompt: int) -> float:
    """Return the seconds that a prompt of ``prompt`` tokens takes."""
    ids = np.random.default_rng(1).integers(0, engine.shape.vocab, prompt).tolist()
    session = engine.session(prompt + 1)
    started = time.perf_counter()
    session.sync(ids, chunk=CHUNK)
    return time.perf_counter() - started


def measured(path: str, rounds: int) -> dict[str, list[Any]]:
    """Run all rounds on the model file ``path``; return the figures of each measurement by name."""
    import distributed

    cores = usable_cores()
    figures: dict[str, list[Any]] = {}
    with distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50,
        memory_limit=0,
    ) as cluster:  # fmt: skip
        for what, threads in (("decode", cores), ("prefill", max(1, cores // WORKERS))):
            for _ in range(rounds):
                for name, layers in layouts(path, WORKERS).items():
                    settings = ClusterSettings(cluster.scheduler_address, layers, patience=PATIENCE)
                    with Engine.open(path, numerics="ds4", threads=threads, cluster=settings) as engine:
                        prefill(engine, 2 * CHUNK)  # pages of the file, recordings
                        figure = decode(engine) if what == "decode" else prefill(engine, PROMPT)
                    figures.setdefault(f"{what} {name}", []).append(figure)
    return figures


def rows(figures: dict[str, list[Any]]) -> Iterator[Row]:
    """Yield the rows of the table for these figures."""
    for name in ("one", "several"):
        tokens = figures[f"decode {name}"]
        for what, key in (("token", "token"), ("computing", "compute"), ("travelling", "travel")):
            samples = [token[key] for token in tokens]
            yield row(f"decode by {name}: {what}", samples, "ms", better="lower")
    pairs = zip(figures["decode several"], figures["decode one"], strict=True)
    hops = [(several["travel_least"] - one["travel_least"]) / (WORKERS - 1) for several, one in pairs]
    yield row("a hop more than one worker's, at least", hops, "ms", better="lower")
    for name in ("one", "several"):
        yield row(f"prefill of {PROMPT} by {name}", figures[f"prefill {name}"], "s", better="lower")
    yield row(f"speed of prefill by {WORKERS} / by one", ratios(figures["prefill one"], figures["prefill several"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    add_json(parser)
    args = parser.parse_args(argv)
    figures = list(rows(measured(args.model, args.rounds)))
    show(figures, f"layers over {WORKERS} workers", args.json, model=args.model, workers=WORKERS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
