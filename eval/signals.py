"""Signals and a run: the first one ends it in order, the second one does not wait."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ds4ref.cancellation import Cancellation
from ds4ref.cli.common import EXIT_INTERRUPTED


class Signals(Cancellation):
    """Signals that end a run in order, for the length of a ``with`` block: the report is printed and the log is whole.

    The second one does not wait: KeyboardInterrupt. ``number`` is the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._second: Callable[[], None] | None = None

    @contextmanager
    def second(self, action: Callable[[], None]) -> Iterator[None]:
        """While inside, the second signal runs ``action`` instead, and the third one raises: for what an exception out
        of nowhere would break, such as an event loop."""
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
        """What the process exits with because of it; 0 if none came."""
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
