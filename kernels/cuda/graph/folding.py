"""Fold small launches into their neighbours.

What a launch of a few threads does hardly takes longer where another one does it, too, and every launch of a graph
costs microseconds. After ``sharing`` and ``joining``

    experts are counted by the launch that chose them
    the row a norm or a chain of stages made is packed by the block that made it
    two rows that go into rings at the same place are stored by one launch, the second with its position bias

Each computes the bits that the ops by themselves do.
"""

from __future__ import annotations

from ..driver.arrays import DeviceArray
from ..driver.launch import Launch, same_values, written_between
from ..products import packed_rows, packing
from ..rows import hyper, routing, stages, windows
from .merging import merged

PACKING = {stages.chain: packed_rows.chain_packed, hyper.hc_enter: packed_rows.enter_packed}
"""Launches of rows by the functions that pack their first result, too."""
LENGTH_AT = {stages.chain: 1, packed_rows.chain_packed: 1, hyper.hc_enter: 2, packed_rows.enter_packed: 2}
"""Which number of such a launch is the length of its rows."""
BLOCKS = {packing.pack_a8: 32, packing.pack_q8k: 256}
"""Values of a row that share a scale, by the function that packs them."""


def folded(launches: list[Launch], kept: set[int], absent: DeviceArray) -> list[Launch]:
    """Apply all kinds of folding. ``kept``: ids of buffers read after the launches; ``absent`` stands for a float array
    that is not there."""
    out = merged(launches, _counts, _counted)
    out = merged(out, _packs, _packed)

    def stored(launch: Launch, later: Launch) -> Launch:
        reads = [launch.reads[0], later.reads[0], absent, launch.reads[1]]
        return Launch(windows.store_both, [launch.writes[0], later.writes[0]], reads, (*launch.numbers, 0))

    return _biased(merged(out, _stores, stored), kept)


def _counts(launch: Launch, later: Launch) -> bool:
    """Whether ``later`` counts the experts that ``launch`` chooses."""
    return (
        launch.function is routing.route
        and later.function is routing.count
        and same_values(launch.writes[1], later.reads[0])
        and launch.numbers[1] == later.numbers[1]
    )


def _counted(launch: Launch, later: Launch) -> Launch:
    return Launch(routing.route_counted, [*launch.writes, *later.writes], launch.reads[:3], launch.numbers)


def _packs(launch: Launch, later: Launch) -> bool:
    """Whether ``later`` packs the rows that ``launch`` makes, in a way in which they are not packed yet."""
    if later.function not in BLOCKS or launch.function not in LENGTH_AT:
        return False
    n, (a8, q8k) = launch.numbers[LENGTH_AT[launch.function]], (False, False)
    if launch.function not in PACKING:
        a8, q8k = launch.numbers[-2:]
    done = q8k if later.function is packing.pack_q8k else a8
    return not done and n % BLOCKS[later.function] == 0 and same_values(launch.writes[0], later.reads[0])


def _packed(launch: Launch, later: Launch) -> Launch:
    """Make one launch of both. Arrays of a way of packing that is not wanted are those of the other one."""
    k = later.function is packing.pack_q8k
    if launch.function in PACKING:
        codes, scales, *sums = later.writes
        writes = [*launch.writes, codes, scales, codes, scales, *(sums or [codes])]
        return Launch(PACKING[launch.function], writes, launch.reads, (*launch.numbers, not k, k))
    *results, codes, scales, codes_k, scales_k, sums_k = launch.writes
    both = [codes, scales, *later.writes] if k else [*later.writes, codes_k, scales_k, sums_k]
    return Launch(launch.function, [*results, *both], launch.reads, (*launch.numbers[:-2], True, True))


def _stores(launch: Launch, later: Launch) -> bool:
    """Whether two rows go to the same place of different rings, neither of which is the other row."""
    if launch.function is not stages.store_rows or later.function is not stages.store_rows:
        return False
    (ring, (x, at)), (ring2, (x2, at2)) = ((each.writes[0], each.reads) for each in (launch, later))
    return (
        list(launch.numbers) == list(later.numbers)
        and same_values(at, at2)
        and ring.dtype == ring2.dtype
        and ring.buffer not in (ring2.buffer, x2.buffer)
        and ring2.buffer is not x.buffer
    )


def _biased(launches: list[Launch], kept: set[int]) -> list[Launch]:
    """Add the position bias while storing where that is its only reader."""
    readers: dict[int, list[int]] = {}
    for number, launch in enumerate(launches):
        for array in launch.reads:
            readers.setdefault(id(array.buffer), []).append(number)
    out: list[Launch | None] = list(launches)
    for number, launch in enumerate(launches):
        if launch.function is not windows.position_bias:
            continue
        result = launch.writes[0]
        found = readers.get(id(result.buffer), [])
        if len(found) != 1 or id(result.buffer) in kept:
            continue
        later = launches[found[0]]
        if later.function is not windows.store_both or not same_values(later.reads[1], result):
            continue
        gate, ape, at = launch.reads
        x, _, _, at2 = later.reads
        tokens, ratio, width = launch.numbers
        fits = same_values(at, at2) and tuple(later.numbers[:2]) == (tokens, width)
        if fits and not written_between(launches[number + 1 : found[0]], launch):
            numbers = *later.numbers[:3], ratio
            out[found[0]], out[number] = Launch(later.function, later.writes, [x, gate, ape, at], numbers), None
    return [launch for launch in out if launch is not None]
