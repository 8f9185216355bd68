"""Join consecutive launches on the same rows into one.

A query head gets norm and rope; a cached row gets norm, rope, two roundings and is stored. Each of these ops is a chain
of one stage of one kernel (``rows.stages``), so a chain of several stages computes the same bits without rows going
through memory or a launch for each. The same holds for the ops before a block (mixing weights, sum of the streams,
norm: ``hyper.hc_enter``) and after it (``hyper.hc_leave``).
"""

from __future__ import annotations

import numpy as np

from ..driver.arrays import DeviceArray
from ..driver.launch import Launch, same_values, written_between
from ..rows import hyper, stages
from ..rows.rounding import NORM


def joined(launches: list[Launch], kept: set[int], absent: DeviceArray) -> list[Launch]:
    """Join chains whose result has a single, later reader and is not in ``kept`` (ids of buffers). A joined chain takes
    the place of its last part. ``absent`` stands for optional float arrays that are None."""
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
        if later is None or later.chain is None or not same_values(later.chain.x, result):
            continue
        both = now.chain.then(later.chain)
        if both is not None and not written_between(launches[number + 1 : after[0]], now):
            out[after[0]], out[number] = both.launch(absent), None
    return _around_blocks([launch for launch in out if launch is not None], kept)


def _around_blocks(launches: list[Launch], kept: set[int]) -> list[Launch]:
    """``hc_enter`` for a split whose first result one sum reads, of which one norm reads the result; ``hc_leave`` for
    an addition whose result one expansion reads."""
    readers: dict[int, list[int]] = {}
    for number, launch in enumerate(launches):
        for array in launch.reads:
            readers.setdefault(id(array.buffer), []).append(number)

    def reader(array: DeviceArray, function: object, operand: int) -> int | None:
        """Where ``function`` alone reads ``array``, as this operand."""
        found = readers.get(id(array.buffer), [])
        fits = len(found) == 1 and id(array.buffer) not in kept and launches[found[0]].function is function
        return found[0] if fits and same_values(launches[found[0]].reads[operand], array) else None

    out: list[Launch | None] = list(launches)
    for number, launch in enumerate(launches):
        if launch.function is hyper.hc_split:
            pre, post, comb = launch.writes
            at = reader(pre, hyper.hc_reduce, 1)
            to = None if at is None else reader(launches[at].writes[0], stages.chain, 0)
            if at is None or to is None:
                continue
            norm = launches[to].chain
            between = launches[number + 1 : to]
            if norm.stages != NORM or written_between(between, launch) or written_between(between, launches[at]):
                continue
            tokens, C, iters, eps = launch.numbers
            e = hyper.Enter(C, norm.n, iters, np.float32(eps), norm.weight is not None, np.float32(norm.eps))
            reads = [*launch.reads, launches[at].reads[0], launches[to].reads[1]]
            out[to] = Launch(hyper.hc_enter, [norm.out, post, comb], reads, (tokens, e))
            out[number] = out[at] = None
        elif launch.function is hyper.add:
            to = reader(launch.writes[0], hyper.hc_expand, 1)
            if to is not None and not written_between(launches[number + 1 : to], launch):
                X, _, post, comb = launches[to].reads
                out[to] = Launch(
                    hyper.hc_leave, launches[to].writes, [X, *launch.reads, post, comb], launches[to].numbers
                )
                out[number] = None
    return [launch for launch in out if launch is not None]
