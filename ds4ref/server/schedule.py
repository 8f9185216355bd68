"""Which of the running answers computes next, shared fairly among clients.

Start-time fair queueing, measured in engine seconds: the client that has used the least comes next, and among its
answers the one that has used the least. A new client does not start at zero, which would give it the engine until it
has caught up, but at the count that the client scheduled last had before it computed; so it comes next. A client that
returns keeps its own count if that is higher. So a client with many answers gets no more of the engine than a client
with one. Not thread-safe: used by the inference thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Used:
    """The engine time of one client.

    seconds  used so far
    floor    the seconds that the client's answer scheduled last had used by then; its new answers start with them
    """

    seconds: float
    floor: float


class Schedule(Generic[T]):
    """The running answers (entries), each of which belongs to a client."""

    def __init__(self) -> None:
        self._clients: dict[str, _Used] = {}
        self._entries: dict[int, tuple[str, T]] = {}
        self._used: dict[int, float] = {}
        self._floor = 0.0

    def add(self, client: str, entry: T) -> None:
        """Add an entry of ``client``, to be scheduled before entries that have computed already."""
        mine = self._clients.setdefault(client, _Used(self._floor, 0.0))
        mine.seconds = max(mine.seconds, self._floor)
        self._entries[id(entry)], self._used[id(entry)] = (client, entry), mine.floor

    def next(self, ready: Callable[[T], bool] = lambda entry: True) -> T:
        """Return the entry that computes next, among those for which ``ready`` is true; ValueError if there is none."""
        entry = next((entry for entry in self.ranked() if ready(entry)), None)
        if entry is None:
            raise ValueError("nobody is ready")
        client = self._clients[self._entries[id(entry)][0]]
        self._floor, client.floor = client.seconds, self._used[id(entry)]
        return entry

    def ranked(self) -> list[T]:
        """Return all entries by the time that their client has used, then by the time that they have; least first."""
        order = sorted(self._entries, key=lambda key: (self._clients[self._entries[key][0]].seconds, self._used[key]))
        return [self._entries[key][1] for key in order]

    def charge(self, entry: T, seconds: float) -> None:
        """Add ``seconds`` of engine time to what ``entry`` and its client have used."""
        self._clients[self._entries[id(entry)][0]].seconds += seconds
        self._used[id(entry)] += seconds

    def remove(self, entry: T) -> None:
        """Remove an entry; forget a client without entries, unless it has used more than a new client starts with."""
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
