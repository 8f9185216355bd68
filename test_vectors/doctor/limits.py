"""End a stage when its time is up or the user wants it to end, whatever it is waiting for or computing.

    with Limit(case.budget, beat) as limit:
        case.limit = limit
        ...                         limit.cancel goes with every request; limit.check() raises OutOfTime

First ``cancel`` is pressed: requests end, a diagnosis returns the best answer so far, the next ``check`` raises. What
has not ended GRACE seconds later is interrupted as by Ctrl-C. Ctrl-C and SIGTERM do the same at once; a second one is
not patient. Outside the main thread, and where there are no POSIX signals, only the first of this happens.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from ds4ref.cancellation import Cancellation

GRACE = 10.0
"""Seconds that a stage has to end by itself."""
BEAT = 15.0
"""Seconds between calls of ``beat``."""
POSIX = hasattr(signal, "pthread_kill")
_NAP = 0.05


class OutOfTime(KeyboardInterrupt):
    """Raised inside a stage whose time is up, or that the user ended."""


class Limit:
    """Context manager of one stage.

    seconds  the stage's budget
    beat     called every BEAT seconds, in another thread, with the seconds so far
    cancel   pressed when the stage is to end
    signum   signal that ended it, 0 if none did
    """

    def __init__(self, seconds: float, beat: Callable[[float], None] = lambda seconds: None):
        self.cancel, self.signum = Cancellation(), 0
        self._beat, self._ended = beat, threading.Event()
        self._begun = time.monotonic()
        self._deadline, self._pressed = self._begun + seconds, 0.0
        self._before: dict[int, Any] = {}

    @property
    def seconds_left(self) -> float:
        """Return the seconds left; negative once they are used up."""
        return 0.0 if self.cancel.requested else self._deadline - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime if the stage is to end."""
        if self.cancel.requested:
            raise OutOfTime

    def __enter__(self) -> Limit:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._handle)
        self._watcher = threading.Thread(target=self._watch, name="doctor-limit", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for each, before in self._before.items():
            signal.signal(each, before)
        self._watcher.join()

    def _handle(self, signum: int, frame: object) -> None:
        if self._ended.is_set():
            return  # the watcher's, a moment too late
        if self.cancel.requested:
            raise OutOfTime
        self.signum = signum
        self._press()

    def _press(self) -> None:
        self._pressed = time.monotonic()
        self.cancel.press()

    def _watch(self) -> None:
        beaten = self._begun
        while not self._ended.wait(_NAP):
            now = time.monotonic()
            if not self.cancel.requested and now > self._deadline:
                self._press()
            elif self.cancel.requested and now > self._pressed + GRACE and self._before and POSIX:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
            if now > beaten + BEAT:
                beaten = now
                self._beat(now - self._begun)
