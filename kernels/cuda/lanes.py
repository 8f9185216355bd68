"""Launches of a recording that do not need one another, side by side.

A captured graph knows only the order it is told. In one lane that is one launch after the other, so a small kernel
waits for the end of another one that it has nothing to do with: shared experts for routed ones, cached rows for
queries. With several lanes (streams that are captured together) a launch waits for those it depends on, by what they
read and write:

    what reads an array waits for who wrote it; what writes one, for all who wrote or read it before

Lanes are given greedily: every launch goes where it can begin first, counting launches as equally long, and preferably
behind one that it waits for anyway. ``Order`` says then which launches are over whenever another one begins; places of
memory may be shared by those only (``recording``), since the rest may run at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .steps import Launch


class Turn(NamedTuple):
    """Where a launch runs, and the launches of other lanes that it waits for."""

    lane: int
    waits: tuple[int, ...]


def needs(launches: Sequence[Launch], shared: set[int]) -> list[set[int]]:
    """For every launch the earlier ones it depends on. ``shared``: ids of buffers that any number may write at once."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found = []
    for number, launch in enumerate(launches):
        read = {id(array.buffer) for array in launch.reads} - shared
        written = {id(array.buffer) for array in launch.writes} - shared
        mine = {writer[key] for key in read | written if key in writer}
        for key in written:
            mine.update(readers.pop(key, ()))
            writer[key] = number
        for key in read - written:
            readers.setdefault(key, []).append(number)
        found.append(mine)
    return found


class Order:
    """The turns of launches, and what they promise: ``before[n]`` has bit m if m is over whenever n begins."""

    def __init__(self, needed: Sequence[set[int]], lanes: int):
        self.turns: list[Turn] = []
        self.before: list[int] = []
        tails: list[int | None] = [None] * lanes
        ends: list[int] = []
        for number, mine in enumerate(needed):
            free = [0 if tail is None else ends[tail] for tail in tails]
            ready = max((ends[m] for m in mine), default=0)

            def cost(lane: int, ready: int = ready, free: list[int] = free, mine: set[int] = mine) -> tuple:
                return max(ready, free[lane]), tails[lane] not in mine, lane

            lane = min(range(lanes), key=cost)
            tail = tails[lane]
            over = 0 if tail is None else self.before[tail] | 1 << tail
            waits = []
            for m in sorted(mine, reverse=True):  # a later one may promise an earlier one
                if not over >> m & 1:
                    waits.append(m)
                    over |= self.before[m] | 1 << m
            self.turns.append(Turn(lane, tuple(sorted(waits))))
            self.before.append(over)
            tails[lane] = number
            ends.append(max(ready, free[lane]) + 1)
        self.ends = [tail for tail in tails if tail is not None]
        """The last launch of every lane that is used."""
        self.length = max(ends, default=0)
        """Launches one after the other, where there is no end of lanes for the others."""

    def sequence(self) -> list[int]:
        """Another order in which launches may come, as far from that of their numbers as lanes allow: each lane goes on
        for as long as it can, the last one first."""
        queues: list[list[int]] = []
        for number, turn in enumerate(self.turns):
            while len(queues) <= turn.lane:
                queues.append([])
            queues[turn.lane].append(number)
        for queue in queues:
            queue.reverse()
        done: set[int] = set()
        found: list[int] = []
        while len(found) < len(self.turns):
            for queue in reversed(queues):
                while queue and done.issuperset(self.turns[queue[-1]].waits):
                    found.append(queue.pop())
                    done.add(found[-1])
        return found

    def spans(self, uses: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, int]]:
        """For places by the numbers of the launches that use them: from the first use to the last launch that may begin
        before all of those are over. Places whose spans do not meet can share memory."""
        total, found = len(self.turns), {}
        for key, users in uses.items():
            mask = sum(1 << n for n in set(users))
            last = max(users)
            for number in range(total - 1, last, -1):
                if self.before[number] & mask != mask:
                    last = number
                    break
            found[key] = min(users), last
        return found
