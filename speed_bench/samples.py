"""A measured row as plain data for the run store: raw times, and shares of the speed bound if known.

``columns`` defines how several samples are combined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4ref.runs import warnings
from ds4ref.runs.columns import COLUMNS, Sample

from .sweep import SweepRow

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks


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
    return with_warnings(entry)


def with_warnings(entry: Sample, *known: warnings.Warnings) -> Sample:
    """Return a sample with the ``known`` warnings and those that its times show (``runs.warnings.of_times``)."""
    found = warnings.merged([*known, warnings.of_times(entry)])
    if "count" in found:  # how long the answer was is unknown
        found.pop("short", None)
    return {**entry, "warnings": found} if found else entry


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
