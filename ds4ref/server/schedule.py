"""Who computes next: the answers under way take turns, fair by client.

Start-time fair queueing over seconds of the engine: the client that has used least comes next, and of its answers the
one that has used least. Who comes new starts where the one that computed last had started, so a newcomer is next, and
owes or is owed nothing; who comes back keeps what it used beyond that. So a client with many answers gets no more of
the engine than a client with one. Not thread-safe: used by the inference thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Used:
    """Seconds used, and what had been used when the one that computed last began (``floor``)."""

    seconds: float
    floor: float


class Schedule(Generic[T]):
    """The answers under way, each of a client."""

    def __init__(self) -> None:
        self._clients: dict[str, _Used] = {}
        self._entries: dict[int, tuple[str, T]] = {}
        self._used: dict[int, float] = {}
        self._floor = 0.0

    def add(self, client: str, entry: T) -> None:
        """Add an entry of ``client``; it comes before those that have computed already."""
        mine = self._clients.setdefault(client, _Used(self._floor, 0.0))
        mine.seconds = max(mine.seconds, self._floor)
        self._entries[id(entry)], self._used[id(entry)] = (client, entry), mine.floor

    def next(self, ready: Callable[[T], bool] = lambda entry: True) -> T:
        """Return the entry that computes next, of those that are ``ready``; raise ValueError if there is none."""
        entry = next((entry for entry in self.ranked() if ready(entry)), None)
        if entry is None:
            raise ValueError("nobody is ready")
        client = self._clients[self._entries[id(entry)][0]]
        self._floor, client.floor = client.seconds, self._used[id(entry)]
        return entry

    def ranked(self) -> list[T]:
        """Return all entries: those of the client that has used least first, of each client likewise."""
        order = sorted(self._entries, key=lambda key: (self._clients[self._entries[key][0]].seconds, self._used[key]))
        return [self._entries[key][1] for key in order]

    def charge(self, entry: T, seconds: float) -> None:
        """Record that ``entry`` has used the engine for ``seconds``."""
        self._clients[self._entries[id(entry)][0]].seconds += seconds
        self._used[id(entry)] += seconds

    def remove(self, entry: T) -> None:
        """Remove an entry; a client without entries that owes nothing is forgotten."""
        del self._entries[id(entry)], self._used[id(entry)]
        here = {client for client, _ in self._entries.values()}
        self._clients = {
            name: used for name, used in self._clients.items() if name in here or used.seconds > self._floor
        }  # fmt: skip

    def count(self, client: str) -> int:
        """Return the number of entries of ``client``."""
        return sum(name == client for name, _ in self._entries.values())

    def __iter__(self) -> Iterator[T]:
        return iter([entry for _, entry in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)
