"""Cancelling work from another thread or from a signal handler.

    cancel = Cancellation()
    threading.Timer(5, cancel.press).start()
    done = target.complete(Request(prompt, cancel=cancel))    # after 5 s: what came so far, finish "cancelled"

Computing loops, such as prefill and decode, poll it (``cancel()``). Code that waits for a server cannot poll: it
registers with ``does`` how to wake it. There is no lock here on purpose: a signal handler interrupts its own thread
anywhere, also while that thread holds one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAP = 0.02


class Cancellation:
    """A button that is pressed once; any number of requests may share one."""

    def __init__(self) -> None:
        self.requested = False
        self._actions: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """Return whether it was pressed."""
        return self.requested

    def press(self) -> None:
        """Cancel the work that depends on this, now. Pressing again is harmless."""
        self.requested = True
        for action in list(self._actions):
            action()

    @contextmanager
    def does(self, action: Callable[[], None]) -> Iterator[None]:
        """Run ``action`` when pressed inside the block: at once if already pressed, perhaps twice, in any thread."""
        self._actions.append(action)
        try:
            if self.requested:
                action()
            yield
        finally:
            self._actions.remove(action)

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until pressed; return whether it was pressed."""
        end = time.monotonic() + seconds
        while not self.requested and (rest := end - time.monotonic()) > 0:
            time.sleep(min(_NAP, rest))
        return self.requested
