"""When drafts pay: expected speed-up from the bytes and operations of a pass, without an engine.

A pass of several rows reads every matrix once, and of the experts those that any row takes (uniform routing is
assumed), so it costs less than its rows one by one. ``ds4ref.costs`` says how much, as lower bounds on time.

    costs = rows_costs(Costs.of_recipe(FLASH, "q2"), depth=8192)
    speed_up(0.7, 3, costs)     1.64
    break_even(1, costs)        0.19
"""

from __future__ import annotations

from collections.abc import Sequence

from ..costs import Costs, Peaks
from ..engine_options import MOST_DRAFTED

UNLIMITED = 1e18
MEMORY = Peaks(1.0, UNLIMITED, UNLIMITED)
"""A machine on which bytes alone count."""


def rows_costs(costs: Costs, depth: int, peaks: Peaks = MEMORY, most: int = MOST_DRAFTED + 1) -> list[float]:
    """Return by rows, 0 to ``most``, the least time of a pass over that of one row, after ``depth`` tokens.

    Bytes are those of ``Costs.prefill`` for a chunk of so many rows, less the one-row chunk's, added to decode's: so
    one row is a decoded token. Operations are those of each row decoded.
    """
    one = costs.decode(depth)
    alone = one.bound(peaks).seconds
    first = costs.prefill(0, 1, 1).bytes
    ratios = [0.0]
    for rows in range(1, most + 1):
        more = costs.prefill(0, rows, rows).bytes - first
        work = type(one)(one.bytes + more, rows * one.int8_ops, rows * one.f32_ops, rows * one.mixed_ops)
        ratios.append(work.bound(peaks).seconds / alone)
    return ratios


def tokens_a_pass(acceptance: float, depth: int) -> float:
    """Return the expected tokens of a pass with ``depth`` drafted ones: 1 + a + a**2 + ... + a**depth."""
    return sum(acceptance**n for n in range(depth + 1))


def speed_up(acceptance: float, depth: int, costs: Sequence[float], draft: float = 0.0) -> float:
    """Return the expected tokens a second over those of plain decode.

    costs   by rows, in passes of one row: expected (``rows_costs``) or measured
    draft   the cost of a drafted token, in passes of one row
    """
    return tokens_a_pass(acceptance, depth) / (costs[depth + 1] + depth * draft)


def break_even(depth: int, costs: Sequence[float], draft: float = 0.0) -> float | None:
    """Return the acceptance from which ``depth`` is as fast as plain decode; None if not even 1 is enough."""
    if speed_up(1.0, depth, costs, draft) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if speed_up(middle, depth, costs, draft) < 1 else (low, middle)
    return high


def best_depth(acceptance: float, costs: Sequence[float], draft: float = 0.0) -> int:
    """Return the depth of greatest expected speed-up, 0 if none is faster than plain decode."""
    return max(range(len(costs) - 1), key=lambda depth: speed_up(acceptance, depth, costs, draft))
