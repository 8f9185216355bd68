"""Joining launches of a recording: chains of row stages that follow each other become one launch.

A query head is normed and turned; a cached row is normed, turned, rounded twice and stored. Every op of such a sequence
is a chain of one stage of the same kernel (``rows``), so several of them are one chain with several stages, and compute
the same bits without writing rows to memory in between or starting another launch for each.
"""

from __future__ import annotations

from .arrays import DeviceArray
from .steps import Launch


def joined(launches: list[Launch], kept: set[int], absent: DeviceArray) -> list[Launch]:
    """The launches with chains joined where a result has one reader, which comes later, and is not ``kept`` (ids of
    buffers). A joined chain runs where its last part stood, after everything that part had to wait for. ``absent``
    stands for float arrays that are not there."""
    readers: dict[int, list[int]] = {}
    for number, launch in enumerate(launches):
        for buffer in {id(array.buffer) for array in launch.reads}:
            readers.setdefault(buffer, []).append(number)
    out: list[Launch | None] = list(launches)
    for number in range(len(launches)):
        now = out[number]
        if now is None or now.chain is None or now.chain.ring is not None:
            continue
        result = now.chain.out
        after = readers.get(id(result.buffer), [])
        if id(result.buffer) in kept or len(after) != 1 or after[0] <= number:
            continue
        later = out[after[0]]
        if later is None or later.chain is None or not _same(later.chain.x, result):
            continue
        both = now.chain.then(later.chain)
        if both is not None and not _written(launches[number + 1 : after[0]], now):
            out[after[0]], out[number] = both.launch(absent), None
    return [launch for launch in out if launch is not None]


def _same(x: DeviceArray, y: DeviceArray) -> bool:
    """Whether two arrays without gaps are the same values, in whatever dimensions."""
    return x.buffer is y.buffer and x.offset == y.offset and x.size == y.size


def _written(between: list[Launch], now: Launch) -> bool:
    """Whether something that ``now`` reads is written by one of the launches ``between``."""
    read = {id(array.buffer) for array in now.reads}
    return any(id(array.buffer) in read for launch in between for array in launch.writes)
