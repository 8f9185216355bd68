"""Detects that a busy machine disturbs a measurement: this process wakes late, or its threads wait for a CPU.

``Lag`` (for endpoints): a thread sleeps again and again, and records by how much it woke too late. A client that waits
for the next event of an answer wakes equally late. For an engine in this process, such a thread would itself be a
disturbance.

``Waits`` (for local engines): Linux counts, for every thread, the time in which it was ready to run and had no CPU.
Reading these counters takes no time inside the timed intervals. The thread that waited longest counts, because the
others wait for it. If this process had all CPUs to itself, its threads waited for each other, which is not a
disturbance.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any

from ds4ref.environment import threads_waited, usable_cores

NAP = 0.002
"""Duration of one sleep in seconds."""
ALL = 0.9
"""Share of the time of all CPUs, from which this process is assumed to have had them to itself."""


def load() -> float | None:
    """Return the machine's load average over the last minute, None on systems that do not have one."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


class Lag:
    """Context manager that measures how late this process wakes from sleep while the block runs.

    The results are available after the block.
    """

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
        """Mean lateness in seconds, each sleep weighted by its duration: what is expected at a random moment."""
        total = sum(over + NAP for over in self._overshoots)
        return sum(over * (over + NAP) for over in self._overshoots) / total if total else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the lateness and the machine's load average as columns of a row: ``lag_ms`` and ``load``."""
        return {"lag_ms": 1e3 * self.seconds, "load": load()}

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()


class Waits:
    """Context manager that adds up how long each thread of this process waited for a CPU during its blocks."""

    def __init__(self) -> None:
        self._waited: dict[str, float] | None = {}
        self._used = self._passed = 0.0  # CPU seconds of this process, and wall-clock seconds

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
        """Return how long the thread that waited longest did so, as a share of ``window`` seconds; None if unknown.

        The share is limited to 1, since Linux counts a wait when it ends, and it may have begun before the block.
        """
        if not self._waited or window <= 0:
            return None
        if self._used >= ALL * usable_cores() * self._passed:
            return 0.0
        return min(1.0, max(self._waited.values()) / max(window, self._passed))
