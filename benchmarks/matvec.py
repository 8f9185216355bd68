"""Matrix-vector products against the machine's read bandwidth, as the engine runs them, with thread pool and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu import tasktable as t
from ds4ref.kernels.cpu.abi import Step
from ds4ref.kernels.cpu.products import CHUNK_BYTES
from ds4ref.kernels.cpu.sizes import READ_LINE
from ds4ref.kernels.formats.matrix import Matrix

from .context import Context
from .goals import FORMATS
from .rows import random_rows
from .timing import Arm, clocked, interleave, ratios

N = 4096
REPEAT = 3
CACHED_MEGABYTES = 1
"""Size of a matrix that a second-level cache keeps."""


def random_matrix(fmt: str, megabytes: int, n: int = N) -> Matrix:
    """Return a matrix of about ``megabytes`` with rows of ``n`` weights; 64 random rows are repeated."""
    rows = random_rows(fmt, 64, n, np.random.default_rng(1))
    data = np.tile(rows, (max(1, (megabytes << 20) // rows.nbytes), 1))
    return Matrix(fmt, data, len(data), n)


def product(threads: int, w: Matrix, act: str) -> Arm:
    """Return an arm that multiplies one input, rounded as ``act``, with ``w``."""
    recording = CPU(threads).record()
    x = np.random.default_rng(2).standard_normal((1, w.cols)).astype(np.float32)
    recording.seal(recording.linear(x, w, act))
    return _replayed(recording, w.data)


def reading(threads: int, *arrays: np.ndarray) -> Arm:
    """Return an arm that reads all bytes of ``arrays``, in whole pieces of 256 bytes."""
    recording = CPU(threads).record()
    for array in arrays:
        out = recording.empty(16 * threads, dtype=np.int32)
        values = recording.at(array), recording.at(out)
        recording.run([Step(t.READ, array.nbytes // READ_LINE, CHUNK_BYTES // READ_LINE, values)])
    recording.seal()
    return _replayed(recording, arrays)


def _replayed(recording: Any, kept: Any) -> Arm:
    """Return an arm that replays; ``kept`` keeps alive what its addresses point at."""
    arm = clocked(recording.replay, REPEAT)

    def timed() -> float:
        assert kept is not None
        return arm()

    return timed


def measure(context: Context) -> None:
    """Measure the rows "read", "read 1", "matvec ..." and "float ..." of the CPU table."""
    megabytes, rounds = (64, 5) if context.quick else (192, 15)
    block = np.ones(megabytes << 20, np.uint8)
    all_threads = interleave({"read": reading(context.threads, block)}, rounds)["read"]
    one = interleave({"read": reading(1, block)}, rounds)["read"]
    context.add("read", [block.nbytes / 1e9 / s for s in all_threads], f"{context.threads} threads")
    context.add("read 1", [block.nbytes / 1e9 / s for s in one])
    del block
    for fmt, act in FORMATS.items():
        context.budget.need(4)
        w = random_matrix(fmt, megabytes)
        arms = {"read": reading(context.threads, w.data), act: product(context.threads, w, act)}
        if not context.quick and act != "float":
            arms["float"] = product(context.threads, w, "float")
        samples = interleave(arms, rounds)
        context.add(f"matvec {fmt}", ratios(samples["read"], samples[act]), f"{act} activations")
        if act != "float" and "float" in samples:
            context.add(f"float {fmt}", ratios(samples["read"], samples["float"]))


def cached(context: Context) -> None:
    """Measure the rows "cached ...": what arithmetic allows one core, on a matrix that stays in its caches.

    Rounding and packing of the input count, too: 1 to 3 % of the time.
    """
    arms, sizes = {}, {}
    for fmt, act in FORMATS.items():
        w = random_matrix(fmt, CACHED_MEGABYTES)
        arms[fmt], sizes[fmt] = product(1, w, act), w.data.nbytes / 1e9
    samples = interleave(arms, 15)
    for fmt, act in FORMATS.items():
        rates = [sizes[fmt] / seconds for seconds in samples[fmt]]
        context.add(f"cached {fmt}", rates, f"{act} activations")
