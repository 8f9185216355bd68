"""The frontier walk: which context depths a sweep measures (docs/bench.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator


def frontiers(start: int, last: int, step_incr: int = 2048, step_mul: float = 1.0) -> Iterator[int]:
    """Depths from ``start`` to ``last``, both included; the last interval may be short.

    step_mul 1 adds ``step_incr`` each time; a larger one multiplies, and rounds up. ValueError for a walk that
    would not advance or has no room.
    """
    if not 1 <= start <= last:
        raise ValueError(f"the first frontier must be 1 to {last}, not {start}")
    if step_incr < 1 or not 1.0 <= step_mul < math.inf:
        raise ValueError(f"a walk in steps of +{step_incr} or x{step_mul} does not advance")
    at = start
    while True:
        yield at
        if at >= last:
            return
        step = at + step_incr if step_mul == 1.0 else max(math.ceil(at * step_mul), at + 1)
        at = min(step, last)
