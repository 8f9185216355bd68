"""Make one launch of two, in the place of the first, where the second one can move up to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..driver.launch import Launch, written_between

FAR = 100
"""Launches between two that can become one, at most: a layer has half as many, and the next one reads its results. A
token has thousands, and would take seconds of looking at each with every other."""


def merged(
    launches: Sequence[Launch],
    fit: Callable[[Launch, Launch], bool],
    both: Callable[[Launch, Launch], Launch],
    flags: set[int],
) -> list[Launch]:
    """Replace each launch and a later one that ``fit`` by ``both`` of them, if nothing between is in the way and they
    are not further apart than FAR. What they became may fit a third one. ``flags``: ids of buffers that launches may
    write in any order."""
    out: list[Launch | None] = list(launches)
    for number, launch in enumerate(out):
        if launch is None:
            continue
        for at in range(number + 1, min(len(out), number + 1 + FAR)):
            later = out[at]
            if later is None or not fit(launch, later) or _collide(launch, later, flags):
                continue
            if not _in_the_way(out[number + 1 : at], later, flags):
                launch = both(launch, later)
                out[number], out[at] = launch, None
    return [launch for launch in out if launch is not None]


def _collide(launch: Launch, later: Launch, flags: set[int]) -> bool:
    """Whether ``later`` writes what ``launch`` reads or writes, which it must not while that runs."""
    written = {id(array.buffer) for array in later.writes} - flags
    return any(id(array.buffer) in written for array in (*launch.writes, *launch.reads))


def _in_the_way(between: Sequence[Launch | None], later: Launch, flags: set[int]) -> bool:
    """Whether a launch ``between`` uses what ``later`` writes or writes what it reads, so that it cannot move up."""
    there = [launch for launch in between if launch is not None]
    written = {id(array.buffer) for array in later.writes} - flags
    uses = (array for launch in there for array in (*launch.writes, *launch.reads))
    return written_between(there, later) or any(id(array.buffer) in written for array in uses)
