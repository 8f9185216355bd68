"""How the processor time of work grows with its size: other load on the machine hardly changes that."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], times: int = 3) -> float:
    """Processor time of ``work``: the least of several calls."""

    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(times))


def grows_linearly(work: Callable[[int], object], size: int, times: int = 16) -> bool:
    """Whether work on so many times the size takes at most ``times ** 1.5`` times as long; quadratic work takes
    ``times ** 2``."""
    return cpu_seconds(lambda: work(times * size)) <= times**1.5 * cpu_seconds(lambda: work(size))
