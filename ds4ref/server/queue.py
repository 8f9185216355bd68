"""A fair queue: clients take turns, and the requests of one client wait for each other.

An agent that sends twenty-four requests at once delays another client's by one of them, not by twenty-four.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Full(Exception):
    """There are as many waiting as may wait."""


class Closed(Exception):
    """Nothing is taken on any more."""


class FairQueue(Generic[T]):
    """Entries with a client's name each; at most ``limit`` wait. Safe to use from any thread."""

    def __init__(self, limit: int, moved: Callable[[T, int], None] = lambda entry, ahead: None):
        self.limit, self.moved = limit, moved
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, client: str, entry: T) -> None:
        """Wait in line. Full or Closed if that cannot be."""
        with self._changed:
            if self._closed:
                raise Closed
            if self._size() >= self.limit:
                raise Full
            self._waiting.setdefault(client, deque()).append(entry)
            self._tell()
            self._changed.notify()

    def take(self, timeout: float | None = None) -> T | None:
        """The next one; None after ``timeout`` seconds, or once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, timeout)
            if not self._waiting:
                return None
            client, line = next(iter(self._waiting.items()))
            entry = line.popleft()
            del self._waiting[client]
            if line:
                self._waiting[client] = line  # its next one comes after one of everybody else
            self._tell()
            return entry

    def drop(self, entry: T) -> bool:
        """Take ``entry`` out of the line; whether it was still in it."""
        with self._changed:
            for client, line in self._waiting.items():
                if entry in line:
                    line.remove(entry)
                    if not line:
                        del self._waiting[client]
                    self._tell()
                    return True
            return False

    def close(self) -> list[T]:
        """No more entries; those that waited."""
        with self._changed:
            self._closed = True
            left = self._order()
            self._waiting.clear()
            self._changed.notify_all()
            return left

    def __len__(self) -> int:
        with self._changed:
            return self._size()

    def _size(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _order(self) -> list[T]:
        """In the order in which they will be taken."""
        lines = [deque(line) for line in self._waiting.values()]
        found = []
        while lines:
            found += [line.popleft() for line in lines]
            lines = [line for line in lines if line]
        return found

    def _tell(self) -> None:
        for ahead, entry in enumerate(self._order()):
            self.moved(entry, ahead)
