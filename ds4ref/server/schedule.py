"""Who computes next: the answers under way take turns, fair by client.

Start-time fair queueing over seconds of the engine: the client that has used least comes next, and of its answers the
one that has used least. Who comes new starts where the one that computed last had started, so a newcomer is next, and
owes or is owed nothing; who comes back keeps what it used beyond that. So a client with many answers gets no more of
the engine than a client with one. Not thread-safe: used by the inference thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Used:
    """Seconds used, and what had been used when the one that computed last began (``floor``); entries by arrival."""

    seconds: float
    floor: float
    entries: dict[int, float] = field(default_factory=dict)


class Schedule(Generic[T]):
    """The answers under way, each of a client."""

    def __init__(self) -> None:
        self._clients: dict[str, _Used] = {}
        self._entries: dict[int, tuple[str, T]] = {}
        self._floor = 0.0

    def add(self, client: str, entry: T) -> None:
        """Add an entry of ``client``; it comes before those that have computed already."""
        mine = self._clients.setdefault(client, _Used(self._floor, 0.0))
        mine.seconds = max(mine.seconds, self._floor)
        mine.entries[id(entry)] = mine.floor
        self._entries[id(entry)] = client, entry

    def next(self, ready: Callable[[T], bool] = lambda entry: True) -> T:
        """Return the entry that computes next, of those that are ``ready``; raise ValueError if there is none."""
        able = [(self._clients[name], key) for key, (name, entry) in self._entries.items() if ready(entry)]
        client = min((used for used, _ in able), key=lambda used: used.seconds)
        key = min((key for used, key in able if used is client), key=client.entries.__getitem__)
        self._floor, client.floor = client.seconds, client.entries[key]
        return self._entries[key][1]

    def ranked(self) -> list[T]:
        """Return all entries: those of the client that has used least first, of each client likewise."""
        used = [(self._clients[name], key) for key, (name, _) in self._entries.items()]
        return [self._entries[key][1] for client, key in sorted(used, key=lambda u: (u[0].seconds, u[0].entries[u[1]]))]

    def charge(self, entry: T, seconds: float) -> None:
        """Record that ``entry`` has used the engine for ``seconds``."""
        used = self._clients[self._entries[id(entry)][0]]
        used.seconds += seconds
        used.entries[id(entry)] += seconds

    def remove(self, entry: T) -> None:
        """Remove an entry; a client without entries that owes nothing is forgotten."""
        client, _ = self._entries.pop(id(entry))
        del self._clients[client].entries[id(entry)]
        over = [name for name, used in self._clients.items() if not used.entries and used.seconds <= self._floor]
        for name in over:
            del self._clients[name]

    def count(self, client: str) -> int:
        """Return the number of entries of ``client``."""
        used = self._clients.get(client)
        return 0 if used is None else len(used.entries)

    def __iter__(self) -> Iterator[T]:
        return iter([entry for _, entry in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)
