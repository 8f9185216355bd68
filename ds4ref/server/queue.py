"""A fair queue: round robin over clients, first in first out within a client.

An agent that sends 24 requests at once delays another client's request by one of them, not by 24.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from typing import Generic, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """Raised if the queue is full or the server is shutting down.

    ``retry_after``: seconds after which to retry, None if retrying is useless.
    """

    def __init__(self, message: str, retry_after: int | None):
        super().__init__(message)
        self.retry_after = retry_after


class FairQueue(Generic[T]):
    """Thread-safe queue of at most ``limit`` entries, each of which belongs to a client, identified by name.

    ``moved(entry, ahead)`` is called for every entry whenever the number of entries ahead of it may have changed.
    """

    def __init__(self, limit: int, moved: Callable[[T, int], None] = lambda entry, ahead: None):
        self.limit, self.moved = limit, moved
        self._waiting: dict[str, deque[T]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, client: str, entry: T) -> None:
        """Append an entry of ``client``; raises Busy if the queue is full or closed."""
        with self._changed:
            if self._closed:
                raise Busy("server shutting down", None)
            if self._size() >= self.limit:
                raise Busy(f"{self.limit} requests wait already", 5)
            self._waiting.setdefault(client, deque()).append(entry)
            self._notify_positions()
            self._changed.notify()

    def take(self, timeout: float | None = None, may: Callable[[str], bool] = lambda client: True) -> T | None:
        """Remove and return the next entry, among those of clients for which ``may(client)`` is true.

        Waits for one up to ``timeout`` seconds, without limit if None. Return None if there is none in time, or once
        the queue is closed and has no such entry.
        """

        def first() -> str | None:
            return next(filter(may, self._waiting), None)

        with self._changed:
            self._changed.wait_for(lambda: first() is not None or self._closed, timeout)
            client = first()
            if client is None:
                return None
            line = self._waiting.pop(client)
            entry = line.popleft()
            if line:
                self._waiting[client] = line  # last, so that every other client comes first
            self._notify_positions()
            return entry

    def drop(self, entry: T) -> bool:
        """Remove ``entry``; return whether it was in the queue."""
        with self._changed:
            for client, line in self._waiting.items():
                if entry in line:
                    line.remove(entry)
                    if not line:
                        del self._waiting[client]
                    self._notify_positions()
                    return True
            return False

    def close(self) -> list[T]:
        """Close the queue; remove and return its entries."""
        with self._changed:
            self._closed = True
            waiting = self._order()
            self._waiting.clear()
            self._changed.notify_all()
            return waiting

    def __len__(self) -> int:
        with self._changed:
            return self._size()

    def _size(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _order(self) -> list[T]:
        """Return the entries in the order in which they will be taken."""
        rounds = zip_longest(*self._waiting.values())
        return [entry for entries in rounds for entry in entries if entry is not None]

    def _notify_positions(self) -> None:
        for ahead, entry in enumerate(self._order()):
            self.moved(entry, ahead)
