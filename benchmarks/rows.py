"""Speed of the row kernels against this machine's read bandwidth: ``python -m benchmarks.rows``.

Each round times, interleaved, a plain read of the weights and every kernel on the same bytes, with one and with two
threads. A figure is the median over the rounds of (kernel bytes per second) / (read bytes per second of the same
round), so that other load cancels. Weights lie in memory, beyond the caches; with --cached they stay in the L2 cache,
which shows the arithmetic limit.

    python -m benchmarks.rows --formats Q8_0 Q4_K --rounds 7
    python -m benchmarks.rows --formats Q8_0 --inputs 4       four inputs at once: a pass of four rows
    DS4_SIMD_TIER=B python -m benchmarks.rows --json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

from ds4ref.kernels.cpu.simd import KERNELS, TIER
from ds4ref.kernels.formats.matrix import Matrix

from .harness import Row, Target, add_json, interleave, ratios, row, show
from .matvec import FORMATS, product, random_matrix, reading

MEGABYTES = 128
"""Megabytes of weights that a kernel reads in each round."""


def measure(matrices: dict[tuple[str, str], Matrix], rounds: int, inputs: int = 1) -> Iterator[Row]:
    """Yield a row of the table for each number of threads and each kernel, which is given by format and rounding."""
    for threads in (1, 2):
        targets: dict[str, Target] = {}
        times = {}
        for (fmt, act), w in matrices.items():
            times[fmt, act] = max(1, (MEGABYTES << 20) // w.nbytes)
            targets[f"read {fmt}/{act}"] = reading(threads, *[w.data] * times[fmt, act])
            targets[f"{fmt}/{act}"] = product(threads, w, act, times[fmt, act], inputs)
        samples = interleave(targets, rounds)
        for (fmt, act), w in matrices.items():
            name, moved = f"{fmt}/{act}", w.nbytes * times[fmt, act] / 1e9
            read, taken = (moved / statistics.median(samples[which]) for which in (f"read {name}", name))
            note = f"{taken:.1f} GB/s, read {read:.1f} GB/s"
            yield row(f"{name}, {threads} threads", ratios(samples[f"read {name}"], samples[name]), note=note)


def main(argv: list[str] | None = None) -> int:
    """Measure the chosen kernels; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.rows", description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inputs", type=int, default=1, help="inputs multiplied at once (1)")
    parser.add_argument("--cached", action="store_true", help="weights in L2: the arithmetic limit")
    add_json(parser)
    args = parser.parse_args(argv)
    megabytes = 0 if args.cached else MEGABYTES
    matrices = {(fmt, act): random_matrix(fmt, megabytes) for fmt, act in KERNELS if fmt in args.formats}
    rows = list(measure(matrices, args.rounds, args.inputs))
    title = f"row kernels / read bandwidth: tier {TIER}, {MEGABYTES} MB of weights"
    show(rows, title, args.json, tier=TIER, cached=args.cached)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
