"""A measured row as plain data for the run store: raw times, and shares of the speed bound if known.

``columns`` defines how several samples are combined.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4ref.runs import drift

from .columns import COLUMNS, Sample, repetition_key
from .sweep import SweepRow

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks

SLOW_START = 0.05
"""Share of speed that a first repetition must lose before it is reported as slow."""


def sample(row: SweepRow, costs: Costs | None = None, peaks: Peaks | None = None, start: float = 0.0) -> Sample:
    """Convert a row to a sample of all columns that it has values for.

    costs, peaks   the cost model and the machine's peaks, for shares of the bound
    start          start of the run in seconds of the process clock
    """
    entry: Sample = {"rep": row.rep, "at": round(row.at - start, 6)}
    for column in COLUMNS:
        value = getattr(row, column.name, None)
        if value is not None and value != "":
            entry[column.name] = value
    entry["steps_s"] = [round(seconds, 9) for seconds in row.steps_s]
    if costs is not None:
        entry |= _bounds(row, costs, peaks)
    return entry


def _bounds(row: SweepRow, costs: Costs, peaks: Peaks | None) -> Sample:
    work = costs.decode(row.ctx_tokens + row.gen_tokens // 2)
    entry: Sample = {"cache_bytes_per_token": costs.shape.kv_bytes(row.ctx_tokens) / row.ctx_tokens}
    if row.gen_tokens:
        entry |= {"decode_bytes": round(work.bytes), "decode_gbs": work.bytes * row.gen_tps / 1e9}
    if peaks is not None and row.gen_tokens:
        decode = work.bound(peaks)
        entry |= {"decode_share": decode.seconds * row.gen_tps, "decode_binds": decode.binds}
    if peaks is not None and row.prefill_tokens:
        prefill = costs.prefill(row.ctx_tokens - row.prefill_tokens, row.ctx_tokens).bound(peaks)
        share = prefill.seconds * row.prefill_tps / row.prefill_tokens
        entry |= {"prefill_share": share, "prefill_binds": prefill.binds}
    return entry


def seconds(entry: Sample) -> float:
    """Return the seconds spent in the timed windows of a sample."""
    if entry.get("seconds"):
        return float(entry["seconds"])
    if entry.get("e2e_ms"):
        return float(entry["e2e_ms"]) / 1e3
    parts = ((entry["prefill_tokens"], entry["prefill_tps"]), (entry["gen_tokens"], entry["gen_tps"]))
    return sum(count / rate for count, rate in parts if rate)


def notes(samples: Sequence[Sample]) -> list[str]:
    """Return warnings about samples: speeds that drifted, a slow first repetition."""
    remarks = drift.notes(samples)
    for name, column in drift.SPEEDS:
        lack = slow_start(samples, column)
        if lack >= SLOW_START:
            remarks.append(
                f"the first repetition's {name} was {100 * lack:.0f} % slower than the others': not warm yet"
            )
    return remarks


def slow_start(samples: Sequence[Sample], column: str) -> float:
    """Return the share of speed by which repetition 0 is slower than the others: the median over depths and tests.

    0 unless it is far outside the range of the others, of which there must be at least three.
    """
    reps: dict[int, dict[tuple[int, str], float]] = {}
    for entry in samples:
        if (entry.get(column) or 0) > 0:
            reps.setdefault(int(entry.get("rep") or 0), {})[repetition_key(entry)] = math.log(entry[column])
    first = reps.pop(0, {})
    if not first or len(reps) < 3:
        return 0.0
    places = set(first).union(*reps.values())
    centre = {at: statistics.median([v[at] for v in reps.values() if at in v] or [first.get(at, 0.0)]) for at in places}

    def relative_speed(values: dict[tuple[int, str], float]) -> float:
        return statistics.median(value - centre[at] for at, value in values.items())

    others = [relative_speed(values) for values in reps.values()]
    slowest_expected = min(others) - (max(others) - min(others))
    return -math.expm1(relative_speed(first)) if relative_speed(first) < slowest_expected else 0.0
