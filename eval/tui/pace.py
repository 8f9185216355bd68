"""Speed, running time and time left, on a clock that stands still during pauses and while nothing runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW = 3.0
"""Seconds that "now" looks back."""


class Pace:
    """Told whenever the screen looks: by ``at`` whether the run goes on, by ``came`` and ``done`` what it brought."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._last, self._going = clock, clock(), False
        self.seconds = 0.0  # of running
        self.tokens = 0
        self.samples = 0
        self._seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def at(self, going: bool) -> None:
        """Time has passed; from now on the run goes or stands."""
        now = self._clock()
        if self._going:
            self.seconds += now - self._last
        self._last, self._going = now, going
        while len(self._seen) > 1 and self._seen[1][0] <= self.seconds - WINDOW:
            self._seen.popleft()

    def came(self, tokens: int) -> None:
        """So many more."""
        self.tokens += tokens
        self._seen.append((self.seconds, self.tokens))

    def counted(self, more: int) -> None:
        """Tokens that only show when an answer is over: pieces of several, or an answer that was not streamed."""
        self.tokens += more
        self._seen = deque((at, tokens + more) for at, tokens in self._seen)

    def done(self) -> None:
        """One more sample."""
        self.samples += 1

    @property
    def speed(self) -> float | None:
        """Tokens per second of late, None before there were any."""
        begun, before = self._seen[0]
        span = self.seconds - begun
        return (self.tokens - before) / span if self.tokens and span >= 0.5 else None

    @property
    def mean(self) -> float | None:
        """Tokens per second since the beginning, prefill and all; None before there were any."""
        return self.tokens / self.seconds if self.tokens and self.seconds >= 0.5 else None

    def left(self, samples: int) -> float | None:
        """Seconds for so many more samples, None before one was done."""
        return samples * self.seconds / self.samples if self.samples else None
