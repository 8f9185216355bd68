"""A queue of events from the inference thread to the event loop.

The worker never waits for a client: it puts events into the queue, and the handler takes them in batches. A client that
reads so slowly that the queue fills up is disconnected.

Waking the event loop and writing to a socket take as long as a token of a small model. So the reader may pause between
batches; during a pause only the last event of an answer wakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from .turn import Delta, Event, Failed

SIZE = 8192
"""Capacity in events: several seconds of tokens at any model's speed."""


def is_last(event: Event) -> bool:
    """Return whether ``event`` ends the answer: a failure, or a delta with a finish reason."""
    return isinstance(event, Failed) or (isinstance(event, Delta) and bool(event.finish))


class Mailbox:
    """Queue of events; ``put`` may be called from any thread, everything else only in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int = SIZE):
        self.loop, self.size = loop, size
        self.full = False
        self._events: deque[Event] = deque()
        self._scheduled = False
        self._resting = self._hurry = False
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Append an event and wake the reader if necessary; at capacity, drop the event and set ``full``."""
        if len(self._events) >= self.size:
            self.full = True
        else:
            self._events.append(event)
        self._hurry = self._hurry or self.full or is_last(event)
        if not self._scheduled and (not self._resting or self._hurry):
            self._scheduled = True
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._arrived)

    def wake(self) -> None:
        """Make a waiting ``take`` return at once, even without events."""
        self._woken = True
        self._wake()

    async def take(self, until: float, rest: float = 0.0) -> list[Event]:
        """Return all queued events; if there are none, wait for the first one until event loop time ``until``.

        Before that, wait until event loop time ``rest`` so that events collect, unless the last event arrives earlier.
        Returns [] if no event arrives in time, or after ``wake``.
        """
        if rest > self.loop.time() and not self._woken and not self._hurry:
            self._resting = True
            try:
                await self._wait(rest)
            finally:
                self._resting = False  # before the queue is read: later events wake again
        while not self._events and not self._woken and self.loop.time() < until:
            await self._wait(until)
        self._woken = False
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    async def _wait(self, until: float) -> None:
        self._waiter = self.loop.create_future()
        timer = self.loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _arrived(self) -> None:
        self._scheduled = False  # before events are taken, so that none is missed
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
