"""End a stage when its time is up or the user wants it to end.

    with Limit(case.budget, beat) as limit:
        case.limit = limit
        ...                         limit goes with every request; limit.check() raises OutOfTime

Requests end, a diagnosis returns the best answer so far, and the next ``check`` raises. Ctrl-C and SIGTERM do the same
at once; a second one interrupts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from ds4ref.console.common import Interrupt

BEAT = 15.0
"""Seconds between calls of ``beat``."""
_NAP = 0.05


class OutOfTime(Exception):
    """Raised inside a stage whose time is up, or that the user ended."""


class Limit(Interrupt):
    """Context manager of one stage, and the switch that cancels its work.

    seconds  the stage's budget
    beat     called every BEAT seconds, in another thread, with the seconds so far
    """

    def __init__(self, seconds: float, beat: Callable[[float], None] = lambda seconds: None):
        super().__init__(signal.SIGTERM)
        self._beat, self._ended, self._begun = beat, threading.Event(), time.monotonic()
        self._deadline = self._begun + seconds

    @property
    def seconds_left(self) -> float:
        """Return the seconds left; negative once they are used up."""
        return 0.0 if self.requested else self._deadline - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime if the stage is to end."""
        if self.requested:
            raise OutOfTime

    def __enter__(self) -> Limit:
        super().__enter__()
        self._watcher = threading.Thread(target=self._watch, name="doctor-limit", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._watcher.join()
        super().__exit__(*exc)

    def _watch(self) -> None:
        beaten = self._begun
        while not self._ended.wait(_NAP):
            now = time.monotonic()
            if now > self._deadline and not self.requested:
                self.press()
            if now > beaten + BEAT:
                beaten = now
                self._beat(now - self._begun)
