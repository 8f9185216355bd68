"""A measured row as plain data, which is what the run store keeps: raw times, and the shares of the bound if one is
known. ``columns`` says what becomes of several of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4ref.runs import drift

from .columns import COLUMNS, Sample, place
from .sweep import Row

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks

SLOW_START = 0.05
"""Share by which a first repetition must lack speed to be worth a word."""


def sample(row: Row, costs: Costs | None = None, peaks: Peaks | None = None, start: float = 0.0) -> Sample:
    """One row: every column that it has a value for. ``start`` is the process clock at the beginning of the run."""
    found: Sample = {"rep": row.rep, "at": round(row.at - start, 6)}
    for column in COLUMNS:
        value = getattr(row, column.name, None)
        if value is not None and value != "":
            found[column.name] = value
    found["steps_s"] = [round(seconds, 9) for seconds in row.steps_s]
    if costs is not None:
        found |= _bounds(row, costs, peaks)
    return found


def _bounds(row: Row, costs: Costs, peaks: Peaks | None) -> Sample:
    work = costs.decode(row.ctx_tokens + row.gen_tokens // 2)
    found: Sample = {"cache_bytes_per_token": costs.shape.kv_bytes(row.ctx_tokens) / row.ctx_tokens}
    if row.gen_tokens:
        found |= {"decode_bytes": round(work.bytes), "decode_gbs": work.bytes * row.gen_tps / 1e9}
    if peaks is not None and row.gen_tokens:
        decode = work.bound(peaks)
        found |= {"decode_share": decode.seconds * row.gen_tps, "decode_binds": decode.binds}
    if peaks is not None and row.prefill_tokens:
        prefill = costs.prefill(row.ctx_tokens - row.prefill_tokens, row.ctx_tokens).bound(peaks)
        share = prefill.seconds * row.prefill_tps / row.prefill_tokens
        found |= {"prefill_share": share, "prefill_binds": prefill.binds}
    return found


def seconds(entry: Sample) -> float:
    """What the windows of a sample took."""
    if entry.get("seconds"):
        return float(entry["seconds"])
    if entry.get("e2e_ms"):
        return float(entry["e2e_ms"]) / 1e3
    parts = ((entry["prefill_tokens"], entry["prefill_tps"]), (entry["gen_tokens"], entry["gen_tps"]))
    return sum(count / rate for count, rate in parts if rate)


def notes(samples: Sequence[Sample]) -> list[str]:
    """What a reader of these samples should know: speeds that drifted, a first repetition that was slow."""
    found = drift.notes(samples)
    for name, column in drift.SPEEDS:
        lack = slow_start(samples, column)
        if lack >= SLOW_START:
            found.append(f"the first repetition's {name} was {100 * lack:.0f} % slower than the others': not warm yet")
    return found


def slow_start(samples: Sequence[Sample], column: str) -> float:
    """The share of speed that repetition 0 lacks against the median of the others, place by place (median); 0 unless
    that is far outside of what the others, three at least, differ by."""
    reps: dict[int, dict[tuple[int, str], float]] = {}
    for entry in samples:
        if (entry.get(column) or 0) > 0:
            reps.setdefault(int(entry.get("rep") or 0), {})[place(entry)] = math.log(entry[column])
    first = reps.pop(0, {})
    if not first or len(reps) < 3:
        return 0.0
    places = set(first).union(*reps.values())
    centre = {at: statistics.median([v[at] for v in reps.values() if at in v] or [first.get(at, 0.0)]) for at in places}

    def against(values: dict[tuple[int, str], float]) -> float:
        return statistics.median(value - centre[at] for at, value in values.items())

    others = [against(values) for values in reps.values()]
    return -math.expm1(against(first)) if against(first) < min(others) - (max(others) - min(others)) else 0.0
