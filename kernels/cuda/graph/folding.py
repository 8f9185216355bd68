"""Fold small launches into their neighbours.

What a launch of a few threads does hardly takes longer where another one does it, too, and every launch of a graph
costs microseconds. After ``sharing`` and ``joining``

    experts are counted by the launch that chose them
    the row a norm or a chain of stages made is packed by the block that made it
    a chain of stages runs beside one that stores its rows
    windows of two rings are gathered by the launch that pools them
    two rows that go into rings at the same place are stored by one launch, the second with its position bias, or by
    the product that makes them

Each computes the bits that the ops by themselves do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from ..driver.arrays import DeviceArray
from ..driver.launch import Launch, same_values, written_between
from ..products import dispatch, packed_rows, packing
from ..rows import hyper, routing, stages, windows
from .merging import merged

PACKING: dict[Callable[..., None], Callable[..., None]] = {
    stages.chain: packed_rows.chain_packed,
    hyper.hc_enter: packed_rows.enter_packed,
}
"""Launches of rows by the functions that pack their first result, too."""
PACKED = set(PACKING.values())
BLOCKS = {packing.pack_a8: 32, packing.pack_q8k: 256}
"""Values of a row that share a scale, by the function that packs them."""


def folded(launches: list[Launch], kept: set[int], flags: set[int], absent: DeviceArray) -> list[Launch]:
    """Apply all kinds of folding. ``kept``: ids of buffers read after the launches; ``flags``: of those written in any
    order; ``absent`` stands for a float array that is not there."""

    def stored(launch: Launch, later: Launch) -> Launch:
        reads = [launch.reads[0], later.reads[0], absent, launch.reads[1]]
        return Launch(windows.store_both, [launch.writes[0], later.writes[0]], reads, (*launch.numbers, 0))

    out = merged(launches, _counts, _counted, flags)
    out = merged(out, _packs, _packed, flags)
    out = merged(out, _beside, _both_chains, flags)
    out = merged(out, _stores, stored, flags)
    reads = Counter(buffer for launch in out for buffer in {id(array.buffer) for array in launch.reads})
    once = {buffer for buffer, times in reads.items() if times == 1} - kept
    out = merged(out, partial(_biases, once), _biased, flags)
    out = merged(out, partial(_makes_rows, once), _stored_at_once, flags)
    return _pooled(out, once)


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
    if later.function not in BLOCKS or launch.function not in PACKING.keys() | PACKED:
        return False
    made, (a8, q8k) = launch.numbers[1], launch.numbers[2:] or (False, False)
    n = made.D if isinstance(made, hyper.Enter) else made.n
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


def _reads_result(launch: Launch, later: Launch) -> bool:
    """Whether ``later`` reads what ``launch`` writes."""
    written = {id(array.buffer) for array in launch.writes}
    return any(id(array.buffer) in written for array in later.reads)


def _stores(launch: Launch, later: Launch) -> bool:
    """Whether two rows go to the same place of two rings."""
    return (
        launch.function is later.function is stages.store_rows
        and list(launch.numbers) == list(later.numbers)
        and same_values(launch.reads[1], later.reads[1])
        and launch.writes[0].dtype == later.writes[0].dtype
        and not _reads_result(launch, later)
    )


def _biases(once: set[int], launch: Launch, later: Launch) -> bool:
    """Whether ``later`` alone reads the biased rows that ``launch`` makes, and stores them as its second ones.
    ``once``: ids of buffers that are read once."""
    if launch.function is not windows.position_bias or later.function is not windows.store_both:
        return False
    tokens, _, width = launch.numbers
    return (
        same_values(launch.writes[0], later.reads[1])
        and id(launch.writes[0].buffer) in once
        and same_values(launch.reads[2], later.reads[3])
        and tuple(later.numbers[:2]) == (tokens, width)
    )


def _biased(launch: Launch, later: Launch) -> Launch:
    reads = [later.reads[0], *launch.reads]
    return Launch(later.function, later.writes, reads, (*later.numbers[:3], launch.numbers[1]))


def _makes_rows(once: set[int], launch: Launch, later: Launch) -> bool:
    """Whether ``later`` alone reads the two results of products of plain numbers, and stores them."""
    if launch.function is not dispatch.linear_both_plain or later.function is not windows.store_both:
        return False
    tokens, width, slots, _ = later.numbers
    return (
        all(map(same_values, launch.writes, later.reads))
        and once.issuperset(id(array.buffer) for array in launch.writes)
        and tokens <= slots
        and all(w.rows == width for w in launch.matrices)
    )


def _stored_at_once(launch: Launch, later: Launch) -> Launch:
    tokens, _, slots, ratio = later.numbers
    reads, numbers = [*launch.reads, *later.reads[2:]], (tokens, slots, ratio)
    return Launch(dispatch.linear_both_stored, later.writes, reads, numbers, matrices=launch.matrices)


def _pooled(launches: list[Launch], once: set[int]) -> list[Launch]:
    """Gather the windows of two rings while pooling them where that alone reads them."""
    out: list[Launch | None] = list(launches)
    makers = {id(each.writes[0].buffer): at for at, each in enumerate(launches) if each.function is windows.windows}
    for number, launch in enumerate(launches):
        if launch.function is not windows.pool:
            continue
        found = [makers[id(array.buffer)] for array in launch.reads if id(array.buffer) in makers.keys() & once]
        if len(found) < 2:
            continue
        kv, score = (launches[at] for at in found)
        fits = list(kv.numbers) == list(score.numbers) and same_values(kv.reads[2], score.reads[2])
        count, slots, tokens, ratio, width, overlap = kv.numbers
        if fits and tuple(launch.numbers) == (count, (2 if overlap else 1) * ratio, width):
            if not any(written_between(launches[at + 1 : number], launches[at]) for at in found):
                reads = [kv.reads[0], score.reads[0], kv.reads[1], score.reads[1], kv.reads[2]]
                out[number] = Launch(windows.pool_windows, launch.writes, reads, kv.numbers)
                for at in found:
                    out[at] = None
    return [launch for launch in out if launch is not None]


def _beside(launch: Launch, later: Launch) -> bool:
    """Whether these are chains of stages on rows of the same length, of which ``later`` stores its rows."""
    return (
        launch.function is stages.chain
        and later.function is stages.chain_store
        and launch.numbers[1].n == later.numbers[1].n
        and not _reads_result(launch, later)
    )


def _both_chains(launch: Launch, later: Launch) -> Launch:
    (rows, c), (rows2, c2, slots) = launch.numbers, later.numbers
    numbers = rows, rows2, c, c2, slots
    return Launch(stages.chain_beside, [*launch.writes, *later.writes], [*launch.reads, *later.reads], numbers)
