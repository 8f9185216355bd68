"""The run behind the screen: a thread that asks, and a queue of what it says.

Tokens may come faster than anybody can read. A listener only puts them into the queue; the screen empties it some times
a second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..plan import Key
from ..runner import Event, Finished, Runner

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval


class Work:
    """``make`` gets the listener. After each answer the next one waits ``pause_s``, so that its grade can be seen."""

    def __init__(self, make: Callable[[Callable[[Event], None]], Runner], pause_s: float):
        self._events: deque[Event] = deque()
        self._pause_s, self._hurry = pause_s, threading.Event()
        self._thread: threading.Thread | None = None
        self.runner = make(self._listen)
        self.failure: BaseException | None = None
        self.interval: Callable[[list[float]], Interval] | None = None
        self.stopping = False

    def _listen(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Finished) and self.runner.at_once == 1 and self.runner.schedule.waiting():
            self._hurry.wait(self._pause_s)

    def events(self) -> list[Event]:
        """What came since the last time."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def start(self) -> None:
        """Run, if nothing does and something waits."""
        if self.alive or self.stopping or self.failure is not None or not self.runner.schedule.waiting():
            return
        self._thread = threading.Thread(target=self._run, name="eval", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self.interval is None:
                from ds4ref.runs.stats import share_interval  # SciPy: a second in which the screen is there already

                self.interval = share_interval
            self.runner.run()
        except BaseException as error:
            self.failure = error

    # --- what the user wants

    def pause(self) -> None:
        """Or go on."""
        (self.runner.go if self.runner.paused else self.runner.pause)()

    def now(self, key: Key) -> None:
        """Ask it now."""
        self.runner.run_now(key)
        self.start()

    def again(self, key: Key) -> None:
        """Ask it next."""
        self.runner.again(key)
        self.start()

    def stop(self) -> None:
        """End in order."""
        self.stopping = True
        self._hurry.set()
        self.runner.stop()

    def leave(self) -> None:
        """End without waiting for what does not."""
        self.stop()
        self.runner.leave()

    def join(self, seconds: float) -> bool:
        """Wait so long for the end; whether it came."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.alive
