"""Branches of a captured graph: launches that do not depend on one another run side by side.

A captured graph knows only the order it is given. With one branch that is one launch after the other, so shared
experts wait for routed ones and cached rows for queries. With several branches (CUDA streams that are captured
together) a launch waits only for the launches it depends on, by what they read and write:

    a launch that reads an array waits for its writer; one that writes it, for all earlier writers and readers

Branches are assigned greedily: every launch goes where it can begin first, counting launches as equally long, and
preferably behind one that it waits for anyway. ``Schedule`` knows which launches have ended whenever another one
begins; only those may share places of memory (``recording``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..driver.gpu import Turn

if TYPE_CHECKING:
    from ..driver.launch import Launch


def needs(launches: Sequence[Launch], shared: set[int]) -> list[set[int]]:
    """For every launch, the earlier ones it depends on. ``shared``: ids of buffers that launches may write at once."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    needed = []
    for number, launch in enumerate(launches):
        read = {id(array.buffer) for array in launch.reads} - shared
        written = {id(array.buffer) for array in launch.writes} - shared
        earlier = {writer[key] for key in read | written if key in writer}
        for key in written:
            earlier.update(readers.pop(key, ()))
            writer[key] = number
        for key in read - written:
            readers.setdefault(key, []).append(number)
        needed.append(earlier)
    return needed


class Schedule:
    """Turns of launches; bit m of ``before[n]``: launch m has ended whenever n begins."""

    def __init__(self, needed: Sequence[set[int]], branches: int):
        self.turns: list[Turn] = []
        self.before: list[int] = []
        tails: list[int | None] = [None] * branches
        ends: list[int] = []
        for number, awaited in enumerate(needed):
            free = [0 if tail is None else ends[tail] for tail in tails]
            ready = max((ends[m] for m in awaited), default=0)

            def cost(branch: int, ready: int = ready, free: list[int] = free, awaited: set[int] = awaited) -> tuple:
                return max(ready, free[branch]), tails[branch] not in awaited, branch

            branch = min(range(branches), key=cost)
            tail = tails[branch]
            over = 0 if tail is None else self.before[tail] | 1 << tail
            waits = []
            for m in sorted(awaited, reverse=True):  # a later one may imply an earlier one
                if not over >> m & 1:
                    waits.append(m)
                    over |= self.before[m] | 1 << m
            self.turns.append(Turn(branch, tuple(sorted(waits))))
            self.before.append(over)
            tails[branch] = number
            ends.append(max(ready, free[branch]) + 1)
        self.ends = [tail for tail in tails if tail is not None]
        """The last launch of every branch in use."""
        self.length = max(ends, default=0)
        """Launches on the longest path, with each as long as any other."""

    def spans(self, uses: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, int]]:
        """Lifetimes of places, given the launches that use each: from the first use to the last launch that may begin
        before all uses have ended. Places whose lifetimes do not overlap can share memory."""
        total, lifetimes = len(self.turns), {}
        for key, users in uses.items():
            mask = sum(1 << n for n in set(users))
            last = max(users)
            for number in range(total - 1, last, -1):
                if self.before[number] & mask != mask:
                    last = number
                    break
            lifetimes[key] = min(users), last
        return lifetimes
