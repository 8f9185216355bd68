"""Measure the peak rates of this machine: memory reads, int8 dot products and float32 multiply-adds per second.

Each rate is measured with a loop of just that instruction, from the instruction set that the kernels use. The loops are
compiled on first use (about two seconds) and are not part of the kernel library. The best of several rounds counts,
because the rates serve as upper bounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import int64, njit, types

from .simd import helpers, x86
from .simd.tiers import TIER
from .simd.vec import JIT, I8x32, I8x64, Int, Vec, inline
from .tasks.read import read

# Independent chains: enough to hide the latency of one instruction, few enough for the registers.
CHAINS = 16 if TIER == "A" else 8
LANES = 16 if TIER == "A" else 8
FLOATS = Vec("f32", CHAINS * LANES)
INTS = Vec("i32", CHAINS * LANES)
PIECE = 1 << 20
STEPS = 1_000_000


def _loop(step: Any) -> Any:
    """Make a function (count, scratch) that runs ``step`` ``count`` times: an inlined function that takes a running
    sum and the address ``scratch``, and returns the new sum."""
    kind = step.result
    load = inline(kind, Int)(lambda k, address: k.load(kind, address))
    keep = inline(types.none, Int, kind)(lambda k, address, value: k.store(address, value))

    @njit(**JIT)
    def loop(count, scratch):
        total = load(scratch)
        for _ in range(count):
            total = step(total, scratch)
        keep(scratch, total)

    return loop


@inline(FLOATS, FLOATS, Int)
def _multiply_add(k, total, address):
    factor = k.load(types.float32, address).splat(FLOATS)
    return k.fma(total, factor, factor)


@inline(INTS, INTS, Int)
def _dot(k, total, address):
    parts = [total.shuffle(range(c * LANES, (c + 1) * LANES)) for c in range(CHAINS)]
    if TIER == "A":
        weights, codes = k.load(I8x64, address), k.load(I8x64, address + 64)
        parts = [x86.dpbusd_512(k, part, weights, codes) for part in parts]
    else:
        # Weights differ between chains, or the compiler would compute one product for all.
        codes = k.load(I8x32, address)
        parts = [part + helpers.dots(k, part.bits(I8x32), codes, None, signed=True) for part in parts]
    while len(parts) > 1:
        parts = [a.cat(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


multiply_adds = _loop(_multiply_add)
"""Run ``CHAINS`` fused multiply-adds of ``LANES`` floats ``count`` times."""
dots = _loop(_dot)
"""Run ``CHAINS`` dot-product steps of ``LANES`` sums of four int8 products ``count`` times."""


def measure(threads: int, megabytes: int = 512, rounds: int = 7) -> dict[str, float]:
    """Measure ``read_gbs``, ``int8_gops`` and ``f32_gflops`` with ``threads`` threads.

    All threads together read ``megabytes``, which should exceed every cache. Takes about a second, plus compiling.
    """
    size = megabytes * (1 << 20) // (threads * PIECE) * PIECE
    data = np.ones(threads * size + 256, np.uint8)
    scratch = np.ones((threads, 4096), np.uint8)
    scratch[:, : FLOATS.lanes * 4].view(np.float32)[:] = 0.5
    for function, kinds in ((read, 3), (multiply_adds, 2), (dots, 2)):
        function.compile((int64,) * kinds)
    places = [row.ctypes.data for row in scratch]
    data_address = data.ctypes.data
    works: tuple[Callable[[int], None], ...] = (
        lambda t: read(data_address + t * size, size, places[t]),
        lambda t: dots(STEPS, places[t]),
        lambda t: multiply_adds(STEPS, places[t]),
    )
    operations = STEPS * CHAINS * LANES * threads
    reading, dotting, multiplying = (_best(work, threads, rounds) for work in works)
    return {
        "read_gbs": threads * size / 1e9 / reading,
        "int8_gops": 8 * operations / 1e9 / dotting,
        "f32_gflops": 2 * operations / 1e9 / multiplying,
    }


def _best(work: Callable[[int], None], threads: int, rounds: int) -> float:
    """Return the seconds that ``work(thread)`` takes in the fastest round, with all threads at work at once.

    That is the CPU time of the slowest thread, so that other processes on the cores do not count. With more threads
    than cores it would therefore be too short.
    """
    best = float("inf")
    for _ in range(rounds + 1):  # one to warm up
        barrier = threading.Barrier(threads)
        spent: list[float] = []

        def run(t: int, barrier: threading.Barrier = barrier, spent: list[float] = spent) -> None:
            barrier.wait()
            start = time.thread_time()
            work(t)
            spent.append(time.thread_time() - start)

        helpers = [threading.Thread(target=run, args=(t,)) for t in range(1, threads)]
        for helper in helpers:
            helper.start()
        run(0)
        for helper in helpers:
            helper.join()
        best = min(best, max(spent))
    return best
