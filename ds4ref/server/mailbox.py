"""Events on their way from the inference thread to the event loop.

The worker never waits for a client: what it says is put here, and taken out in bunches as fast as the client reads.
Who lags so far behind that the box is full has lost the connection.

Waking another thread, and writing to a socket, cost as much as a small model's token. So who takes may rest a little
between two bunches: then only an event that ends the answer wakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from .turn import Delta, Event, Failed

SIZE = 8192
"""Events; several seconds of any model's speed."""


def is_last(event: Event) -> bool:
    """Whether the answer ends with it."""
    return isinstance(event, Failed) or (isinstance(event, Delta) and bool(event.finish))


class Mailbox:
    """``put`` from any thread, everything else in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int = SIZE):
        self.loop, self.size = loop, size
        self.full = False
        self._events: deque[Event] = deque()
        self._scheduled = False
        self._resting = self._hurry = False
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Say what happened. After the loop has ended nobody listens, and that is no error."""
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
        """Let ``take`` return, whether there is something or not."""
        self._woken = True
        self._wake()

    async def take(self, until: float, rest: float = 0.0) -> list[Event]:
        """What has come, waiting for it until loop time ``until``; empty then, or if woken. Until ``rest`` there is no
        hurry, except with the last event."""
        if rest > self.loop.time() and not self._woken and not self._hurry:
            self._resting = True
            try:
                await self._wait(rest)
            finally:
                self._resting = False  # before anything is looked for: what comes now wakes again
        while not self._events and not self._woken and self.loop.time() < until:
            await self._wait(until)
        self._woken = False
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    async def _wait(self, until: float) -> None:
        self._waiter = self.loop.create_future()
        timer = self.loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _arrived(self) -> None:
        self._scheduled = False  # before anything is taken, so that nothing is overlooked
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
