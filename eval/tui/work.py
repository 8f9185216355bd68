"""The thread that asks the questions, and the queue of its events, which the screen empties at every redraw."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..runner import Event, Finished, Runner

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval


class Work:
    """Runs the runner that ``make_runner(listener)`` returns in a thread. If questions are asked one at a time, it
    waits ``pause_s`` seconds after each answer, so that the grade can be seen."""

    def __init__(self, make_runner: Callable[[Callable[[Event], None]], Runner], pause_s: float):
        self._events: deque[Event] = deque()
        self._pause_s, self._no_pause = pause_s, threading.Event()
        self._thread: threading.Thread | None = None
        self.runner = make_runner(self._listen)
        self.failure: BaseException | None = None
        self.interval: Callable[[list[float]], Interval] | None = None
        self.stopping = False

    def _listen(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Finished) and self.runner.at_once == 1 and self.runner.waiting():
            self._no_pause.wait(self._pause_s)

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def start(self) -> None:
        """Start the thread, unless it is running already or no samples are left to ask."""
        if self.alive or self.stopping or self.failure is not None or not self.runner.waiting():
            return
        self._thread = threading.Thread(target=self._run, name="eval", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self.interval is None:
                from ds4ref.runs.stats import share_interval  # SciPy takes a second, in which the screen is already up

                self.interval = share_interval
            self.runner.run()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Stop the run; running samples are logged as stopped."""
        self.stopping = True
        self._no_pause.set()
        self.runner.stop()

    def leave(self) -> None:
        """Stop the run without waiting for the running sample."""
        self.stop()
        self.runner.leave()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the thread; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.alive
