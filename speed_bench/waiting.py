"""What a busy machine does to a measurement: how late this process wakes, and how long it waits for a processor.

Lag (endpoints): a thread sleeps again and again and notes how much too late it woke. A client that waits for pieces
wakes as late. The thread would itself disturb an engine that computes in this process.

Waits (local engines): Linux counts, for every thread, the time it was ready to run and did not. Reading that costs
nothing inside the timed windows. The thread that waited longest counts, since the others wait for it. If this process
had all processors itself, its threads waited for each other, which is no disturbance.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any

from ds4ref.environment import threads_waited, usable_cores

NAP = 0.002
"""Seconds of one sleep."""
ALL = 0.9
"""Share of the processors' time from which this process had them to itself."""


def load() -> float | None:
    """Return the machine's load average over the last minute, None where there is none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


class Lag:
    """Context manager that measures this process's lag while its block runs; leave it before ``facts``."""

    def __init__(self) -> None:
        self._overshoots: list[float] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def _watch(self) -> None:
        clock = time.monotonic
        while not self._left.is_set():
            start = clock()
            time.sleep(NAP)
            self._overshoots.append(max(0.0, clock() - start - NAP))

    @property
    def seconds(self) -> float:
        """Overshoot in seconds at a random moment: the mean, each weighted by the time that its sleep took."""
        total = sum(over + NAP for over in self._overshoots)
        return sum(over * (over + NAP) for over in self._overshoots) / total if total else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the fields of a row: ``lag_ms`` and ``load``."""
        return {"lag_ms": 1e3 * self.seconds, "load": load()}

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()


class Waits:
    """Context manager that adds up how long each thread of this process waited for a processor while its blocks ran."""

    def __init__(self) -> None:
        self._waited: dict[str, float] | None = {}
        self._used = self._passed = 0.0  # seconds of processors, and on the wall

    def __enter__(self) -> Waits:
        self._before, self._used_before, self._start = threads_waited(), time.process_time(), time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._used += time.process_time() - self._used_before
        self._passed += time.monotonic() - self._start
        after = threads_waited()
        if self._before is None or after is None or self._waited is None:
            self._waited = None
            return
        for thread, seconds in after.items():
            more = seconds - self._before.get(thread, 0.0)
            self._waited[thread] = self._waited.get(thread, 0.0) + more

    def share(self, window: float) -> float | None:
        """Return how long the thread that waited longest did, as a share of ``window`` seconds; None if unknown.

        At most 1: Linux counts a wait when it ends, also one that began before the block.
        """
        if not self._waited or window <= 0:
            return None
        if self._used >= ALL * usable_cores() * self._passed:
            return 0.0
        return min(1.0, max(self._waited.values()) / max(window, self._passed))
