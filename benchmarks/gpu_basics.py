"""What everything else on a GPU is made of: one launch, chains and lanes of launches, copies, one pack.

A launch of a kernel that does nothing, with the arguments of a small one, shows what a launch costs by itself: from
Python, and as a node of a captured graph, where nothing of Python is left.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.cuda.driver.devices import nothing
from ds4ref.kernels.cuda.graph.branches import Schedule

from .gpu_products import Bench, packing

if TYPE_CHECKING:
    from .gpu_part import Check

CHAIN = 200
"""Launches in a chain, each of which waits for the one before."""
LANES = 3
PINNED_BYTES = 256 << 20
ROUNDS = 9


def median_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Return the median time of ``work`` over some rounds, after one that is not timed."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def measure(check: Check) -> None:
    """Run the part "basics" of ``gpu_check``."""
    bench = Bench(check.rehearsal)
    rounds, length = (1, 4) if check.rehearsal else (ROUNDS, CHAIN)
    launches(check, bench, rounds, length)
    copies(check, bench, rounds)
    pack = packing(bench, "Q8_0", "a8", 4096)
    check.add("one pack of 4096 inputs, in a graph", pack.microseconds, "us", timed=True)
    bench.close()


def launches(check: Check, bench: Bench, rounds: int, length: int) -> None:
    """Add the rows of empty launches: from Python, in a chain and in lanes of a graph."""
    driver, x = bench.driver, bench.array(np.zeros(32, np.float32))

    def launch(stream: Any) -> None:
        nothing[1, 32, stream](x, x, 32)

    def from_python() -> None:
        for _ in range(length):
            launch(driver.stream)

    def waited(graph: Any) -> None:
        graph.launch()
        driver.sync()

    launch(driver.stream)
    driver.sync()
    taken = []
    for _ in range(rounds):
        taken.append(median_seconds(from_python, 1) / length)
        driver.sync()  # untimed: the queue must not fill up
    check.add("empty launch from Python", 1e6 * statistics.median(taken), "us", note="host time", timed=True)
    call = partial(launch, driver.stream)
    alone = median_seconds(partial(waited, driver.capture([], [call], [])), rounds)
    check.add("graph of one empty launch, with its end awaited", 1e6 * alone, "us", timed=True)
    chain = median_seconds(partial(waited, driver.capture([], [call] * length, [])), rounds)
    check.add(f"graph of a chain of {length}, a node", 1e6 * chain / length, "us", timed=True)
    calls, order = lanes(launch, driver, length)
    beside = median_seconds(partial(waited, driver.capture([], calls, [], order)), rounds)
    note = f"a node of the chain: {1e6 * chain / length:.2f} us" if not check.rehearsal else ""
    item = f"graph of {LANES} lanes of {length}, a step of all"
    check.add(item, 1e6 * beside / length, "us", note=note, timed=True)


def lanes(launch: Callable[[Any], None], driver: Any, length: int) -> tuple[Sequence[Callable[[], None]], Schedule]:
    """Return LANES chains side by side: the calls, and their order."""
    order = Schedule([{n - LANES} if n >= LANES else set() for n in range(LANES * length)], LANES)
    return [partial(launch, driver.stream_of(turn.branch)) for turn in order.turns], order


def copies(check: Check, bench: Bench, rounds: int) -> None:
    """Add the rows of copies within the device, and between it and page-locked memory of the host."""
    driver = bench.driver
    check.add("copy within the device", bench.copy(), "GB/s", note="bytes read and written", timed=True)
    pinned = driver.pinned(min(PINNED_BYTES, bench.size))

    def there() -> None:
        driver.to_device(bench.buffer, 0, pinned)
        driver.sync()

    def back() -> None:
        driver.to_host(pinned, bench.buffer, 0)

    for item, work in (("copy to the device", there), ("copy to the host", back)):
        speed = pinned.nbytes / median_seconds(work, rounds) / 1e9
        check.add(item, speed, "GB/s", note="page-locked memory", timed=True)
