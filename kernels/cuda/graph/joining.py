"""Join launches of a recording where one launch computes the same bits as several.

A query head is normed and rotated (rope); a cache row is normed, rotated, rounded twice and stored. Each of these ops
is one stage of the same kernel (``rows.stages``), so a single launch for a chain of several stages computes the same
bits, and rows need not go through memory in between. Two consecutive products of the same inputs (gate and up) become
one launch with two matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..driver.arrays import DeviceArray
from ..driver.launch import Launch, same_values
from ..products import matvec


def both(launch: Launch, later: Launch) -> Launch | None:
    """Return one launch for two consecutive ones if they are mat-vec products of the same inputs that can run together;
    else None."""
    if not launch.function is later.function is matvec.multiply or launch.numbers != later.numbers:
        return None
    (w,), (w2,) = launch.matrices, later.matrices
    if not all(map(same_values, launch.reads, later.reads)) or not matvec.together(w, w2, *launch.numbers):
        return None
    writes = [launch.writes[0], *later.writes]
    return Launch(matvec.multiply_both, writes, launch.reads, launch.numbers, matrices=(w, w2))


def joined(launches: list[Launch], kept: set[int], absent: DeviceArray) -> list[Launch]:
    """Return the launches with chains of row stages joined: two become one if the result of the first is read by the
    second alone and is not in ``kept`` (ids of buffers). The joined launch takes the place of the second.

    absent: array to pass to kernels in place of float arrays that are None
    """
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
        one = now.chain.then(later.chain)
        if one is not None and not _written_between(launches[number + 1 : after[0]], now):
            out[after[0]], out[number] = one.launch(absent), None
    return [launch for launch in out if launch is not None]


def _written_between(between: Sequence[Launch], reader: Launch) -> bool:
    """Return whether one of the launches ``between`` writes an array that ``reader`` reads."""
    read = {id(array.buffer) for array in reader.reads}
    return any(id(array.buffer) in read for launch in between for array in launch.writes)
