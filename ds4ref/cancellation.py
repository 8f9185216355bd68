"""Stopping work from outside: from another thread, or from a signal handler.

    cancel = Cancellation()
    threading.Timer(5, cancel.press).start()
    done = target.complete(Request(prompt, cancel=cancel))    # after 5 s: what came so far, finish "cancelled"

Loops that compute ask it (``cancel()``), which is what prefill and decode take. What waits for somebody else, for a
server above all, cannot ask: it says with ``does`` how it is woken up. There is no lock in here on purpose: a signal
handler interrupts its own thread anywhere, also while that thread holds one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAP = 0.02


class Cancellation:
    """A button that is pressed once. Any number of requests may hang on one."""

    def __init__(self) -> None:
        self.requested = False
        self._actions: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """Whether it was pressed."""
        return self.requested

    def press(self) -> None:
        """Stop what hangs on it, now. Pressing again does no harm."""
        self.requested = True
        for action in list(self._actions):
            action()

    @contextmanager
    def does(self, action: Callable[[], None]) -> Iterator[None]:
        """While inside, pressing runs ``action``: at once if it was pressed already, perhaps twice, in any thread."""
        self._actions.append(action)
        try:
            if self.requested:
                action()
            yield
        finally:
            self._actions.remove(action)

    def wait(self, seconds: float) -> bool:
        """Sleep so long or until it is pressed; whether it was."""
        end = time.monotonic() + seconds
        while not self.requested and (rest := end - time.monotonic()) > 0:
            time.sleep(min(_NAP, rest))
        return self.requested
