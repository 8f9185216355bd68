"""End a stage when its time is up or the user wants it to end.

    with Limit(case.budget) as limit:
        case.limit = limit
        ...                         limit goes with every request; limit.check() raises OutOfTime

When the time is up, running requests end, a running diagnosis returns its best answer so far, and the next ``check``
raises. Ctrl-C and SIGTERM do the same at once; a second one raises KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
import time

from ds4ref.console.common import Interrupt


class OutOfTime(Exception):
    """Raised inside a stage to end it: its time is up, or the user interrupted it."""


class Limit(Interrupt):
    """Time limit of one stage, a context manager; requests that are given it end with it. ``seconds``: the budget."""

    def __init__(self, seconds: float):
        super().__init__(signal.SIGTERM)
        self._deadline = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self.press)
        self._timer.daemon = True

    @property
    def seconds_left(self) -> float:
        """Return the seconds left; 0 or less once the stage has to end."""
        return 0.0 if self.requested else self._deadline - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime if the time is up or the user interrupted the stage."""
        if self.requested:
            raise OutOfTime

    def __enter__(self) -> Limit:
        super().__enter__()
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        super().__exit__(*exc)
