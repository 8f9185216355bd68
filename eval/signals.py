"""Handle signals during a run: the first stops it in order, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ds4ref.cancellation import Cancellation
from ds4ref.console.common import EXIT_INTERRUPTED


class Signals(Cancellation):
    """Handle SIGINT, SIGTERM, SIGHUP and SIGQUIT inside a ``with`` block.

    The first signal requests cancellation, so that the log stays whole and the report is printed; the second raises
    KeyboardInterrupt. ``number`` is the first signal, 0 before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._second: Callable[[], None] | None = None

    @contextmanager
    def second(self, action: Callable[[], None]) -> Iterator[None]:
        """Run ``action`` at the second signal and raise KeyboardInterrupt only at the third, inside a ``with`` block.

        For an event loop, which an exception raised in a signal handler would break.
        """
        self._second = action
        try:
            yield
        finally:
            self._second = None

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            action, self._second = self._second, None
            if action is None:
                raise KeyboardInterrupt
            return action()
        self.number = number
        self.press()

    @property
    def code(self) -> int:
        """Return the exit code of the process: 130 or 128 + number, 0 without a signal."""
        if not self.number:
            return 0
        return EXIT_INTERRUPTED if self.number == signal.SIGINT else 128 + self.number

    def __enter__(self) -> Signals:
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
