"""Make one launch of two, in the place of the first, where the second one can move up to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..driver.launch import Launch, written_between


def merged(
    launches: Sequence[Launch], fit: Callable[[Launch, Launch], bool], both: Callable[[Launch, Launch], Launch]
) -> list[Launch]:
    """Replace each launch and a later one that ``fit`` by ``both`` of them, if nothing between is in the way. What they
    became may fit a third one."""
    out: list[Launch | None] = list(launches)
    for number, launch in enumerate(out):
        if launch is None:
            continue
        for at in range(number + 1, len(out)):
            later = out[at]
            if later is not None and fit(launch, later) and not _in_the_way(out[number + 1 : at], later):
                launch = both(launch, later)
                out[number], out[at] = launch, None
    return [launch for launch in out if launch is not None]


def _in_the_way(between: Sequence[Launch | None], later: Launch) -> bool:
    """Whether a launch ``between`` uses what ``later`` writes or writes what it reads, so that it cannot move up."""
    there = [launch for launch in between if launch is not None]
    result = id(later.writes[0].buffer)  # what else it writes goes with it, or is the flag that any may set
    uses = (array for launch in there for array in (*launch.writes, *launch.reads))
    return written_between(there, later) or any(id(array.buffer) == result for array in uses)
