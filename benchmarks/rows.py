"""Speed of the row kernels against this machine's read bandwidth: ``python -m benchmarks.rows``.

Each round times, interleaved, a plain read of the weights and every kernel on the same bytes, with one and with two
threads (Python threads that take 1 MiB pieces of the rows from a common counter). A figure is the median over the
rounds of (kernel bytes per second) / (read bytes per second of the same round), so that other load cancels. Weights lie
in memory, beyond the caches; with --cached they stay in the L2 cache, which shows the arithmetic limit.

    python -m benchmarks.rows --formats Q8_0 Q4_K --rounds 7
    DS4_SIMD_TIER=B python -m benchmarks.rows --json
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numba import int64

from ds4ref.kernels.cpu.simd import KERNELS, TIER, RowKernel
from ds4ref.kernels.cpu.simd.row_kernel import COUNTS
from ds4ref.kernels.cpu.tasks.read import read
from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.format import PowerOfTwo

from .harness import Row, Target, add_json, interleave, ratios, row, show

N, MEGABYTES = 4096, 128
"""Length of rows, and weights of a kernel."""
PIECE = 1 << 20


def random_rows(fmt: str, rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return uint8 (rows, row_bytes) of valid blocks of a format, with ordinary scales."""
    layout = FORMATS[fmt]
    if fmt in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, n), np.float32)
        if fmt == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if fmt == "F16" else np.float32).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, n // layout.block_elems, layout.block_bytes), np.uint8)
    for scale in (layout.scale, layout.minimum):
        if isinstance(scale, PowerOfTwo):
            blocks[:, :, scale.byte] = rng.integers(112, 122, blocks.shape[:2])
        elif scale is not None:
            values = rng.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
            blocks[:, :, scale.byte : scale.byte + 2] = values[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def in_threads(threads: int, pieces: list[tuple[int, int]], work: Callable[[int, int], object]) -> float:
    """Return the seconds to run ``work(first, last)`` over all pieces, taken in order by ``threads`` threads.

    This is the mean of the threads' CPU times, so that other processes do not count.
    """
    counter = itertools.count()
    spent: list[float] = []

    def loop() -> None:
        started = time.thread_time()
        while (index := next(counter)) < len(pieces):
            work(*pieces[index])
        spent.append(time.thread_time() - started)

    helpers = [threading.Thread(target=loop) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    loop()
    for helper in helpers:
        helper.join()
    return sum(spent) / threads


def split(total: int, size: int) -> list[tuple[int, int]]:
    """Return ranges (first, last) of ``size`` that cover ``total``; the last one may be shorter."""
    return [(at, min(at + size, total)) for at in range(0, total, size)]


class Case:
    """One row kernel to measure, with its own weights."""

    def __init__(self, fmt: str, act: str, kernel: RowKernel, cached: bool):
        rng, n = np.random.default_rng(1), N
        self.name, self.kernel = f"{fmt}/{act}", kernel
        drawn_rows = random_rows(fmt, 64, n, rng)
        repeats = 1 if cached else max(1, (MEGABYTES << 20) // drawn_rows.nbytes)
        self.weights = np.tile(drawn_rows, (repeats, 1))
        self.passes = max(1, (MEGABYTES << 18) // drawn_rows.nbytes) if cached else 1
        self.out = np.zeros((max(COUNTS), len(self.weights)), np.float32)
        size = -(-kernel.packed_bytes(n) // 64) * 64
        self.buffer = np.zeros(max(COUNTS) * size + 64, np.uint8)
        self.at = (self.buffer.ctypes.data + 63) // 64 * 64
        places = [self.at + size * i for i in range(max(COUNTS))]
        for place in places:
            x = rng.standard_normal(n, np.float32)
            kernel.pack(x.ctypes.data, n, place)
        self.table = np.array([*zip(places, (out.ctypes.data for out in self.out), strict=True)], np.int64)
        self.bytes = self.weights.nbytes * self.passes
        self.pieces = split(len(self.weights), max(1, PIECE // drawn_rows.shape[1])) * self.passes

    def seconds(self, threads: int) -> float:
        """Return the seconds to multiply all rows with one input."""
        w, row_bytes, table = self.weights.ctypes.data, self.weights.shape[1], self.table.ctypes.data
        rows = self.kernel.rows[1]
        rows.compile((int64,) * 6)
        return in_threads(threads, self.pieces, lambda a, b: rows(w, a, b, row_bytes, N, table))

    def read_seconds(self, threads: int) -> float:
        w, out = self.weights.ctypes.data, self.buffer.ctypes.data + self.buffer.nbytes - 64
        pieces = split(self.weights.nbytes // 256 * 256, PIECE) * self.passes
        return in_threads(threads, pieces, lambda a, b: read(w + a, b - a, out))


def measure(cases: list[Case], rounds: int) -> Iterator[Row]:
    """Yield a row for each kernel and number of threads."""
    for threads in (1, 2):
        targets: dict[str, Target] = {}
        for case in cases:
            targets[f"read {case.name}"] = partial(case.read_seconds, threads)
            targets[case.name] = partial(case.seconds, threads)
        samples = interleave(targets, rounds, warm=False)
        for case in cases:
            read, taken = (statistics.median(samples[name]) for name in (f"read {case.name}", case.name))
            note = f"{case.bytes / 1e9 / taken:.1f} GB/s, read {case.bytes / 1e9 / read:.1f} GB/s"
            item = f"{case.name}, {threads} thread{'s' * (threads > 1)}"
            yield row(item, ratios(samples[f"read {case.name}"], samples[case.name]), note=note)


def main(argv: list[str] | None = None) -> int:
    """Measure the chosen kernels; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.rows", description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=["Q8_0", "Q4_K", "Q2_K", "IQ2_XXS", "F16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cached", action="store_true", help="weights in L2: the arithmetic limit")
    add_json(parser)
    args = parser.parse_args(argv)
    cases = [Case(f, a, kernel, args.cached) for (f, a), kernel in KERNELS.items() if f in args.formats]
    rows = list(measure(cases, args.rounds))
    title = f"row kernels / read bandwidth: tier {TIER}, {MEGABYTES} MB of weights"
    show(rows, title, args.json, tier=TIER, cached=args.cached)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
