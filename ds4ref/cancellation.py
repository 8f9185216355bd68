"""Cancelling work from another thread or from a signal handler.

    cancel = Cancellation()
    threading.Timer(5, cancel.press).start()
    done = target.complete(Request(prompt, cancel=cancel))    # after 5 s: the text so far, finish "cancelled"

Loops that compute, such as prefill and decode, poll it (``cancel()``). Code that waits for a server cannot poll: with
``does`` it registers an action that ends the wait. There is no lock on purpose: a signal handler may interrupt its own
thread while that thread holds one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAP = 0.02


class Cancellation:
    """A switch that is pressed once to cancel; any number of requests may share one."""

    def __init__(self) -> None:
        self.requested = False
        self._actions: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """Return whether the work was cancelled."""
        return self.requested

    def press(self) -> None:
        """Cancel all work that uses this switch, at once; pressing again has no effect."""
        self.requested = True
        for action in list(self._actions):
            action()

    @contextmanager
    def does(self, action: Callable[[], None]) -> Iterator[None]:
        """Context manager: while its block runs, ``action`` is called on cancellation, or at once if already cancelled.

        The action may run twice, and in any thread.
        """
        self._actions.append(action)
        try:
            if self.requested:
                action()
            yield
        finally:
            self._actions.remove(action)

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until cancelled; return whether it was cancelled."""
        end = time.monotonic() + seconds
        while not self.requested and (rest := end - time.monotonic()) > 0:
            time.sleep(min(_NAP, rest))
        return self.requested
