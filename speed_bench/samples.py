"""Measured rows as plain data: one sample a repetition and depth, and one summary a depth.

A sample is what the run store keeps: raw times, and the shares of the bound if one is known. A summary is a line of
the CSV: medians over repetitions, with the band in which the middle half of them lies (all, below five).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.runs.spread import median_band, quantile

from .sweep import Row

if TYPE_CHECKING:
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.costs import Peaks

Sample = dict[str, Any]
P95_FROM = 20
"""Decode steps below which a 95th percentile is a guess."""
_SAME = ("ctx_tokens", "prefill_tokens", "gen_tokens", "kvcache_bytes", "streams")


def sample(row: Row, costs: Costs | None = None, peaks: Peaks | None = None, start: float = 0.0) -> Sample:
    """One row. ``start`` is the process clock at the beginning of the run."""
    found: Sample = {
        "rep": row.rep,
        "at": round(row.at - start, 6),
        "ctx_tokens": row.ctx_tokens,
        "prefill_tokens": row.prefill_tokens,
        "prefill_tps": row.prefill_tps,
        "gen_tokens": row.gen_tokens,
        "gen_tps": row.gen_tps,
        "kvcache_bytes": row.kvcache_bytes,
        "gen_first_ms": row.gen_first_ms,
        "gen_steady_tps": row.gen_steady_tps,
        "gen_digest": row.gen_digest,
        "rss_bytes": row.rss_bytes,
        "steps_s": [round(seconds, 9) for seconds in row.steps_s],
    }
    if row.test:
        found["test"] = row.test
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


def summaries(samples: Iterable[Sample]) -> list[Sample]:
    """One entry a depth, in order of depth; tests, of which several may end at one depth, in their own order."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for entry in samples:
        depth, test = entry["ctx_tokens"], entry.get("test", "")
        groups.setdefault((0 if test else depth, test), []).append(entry)
    return [summary(groups[key]) for key in sorted(groups, key=lambda key: key[0])]


def summary(group: Sequence[Sample]) -> Sample:
    """Samples of one depth as one."""
    found = {k: v for k, v in group[-1].items() if k not in ("steps_s", "rep", "at")}
    for name in found:
        values = [entry[name] for entry in group if isinstance(entry.get(name), (int, float))]
        if values and name not in _SAME:
            found[name] = max(values) if name == "rss_bytes" else statistics.median(values)
    if len({entry.get("gen_digest") for entry in group}) > 1:
        found["gen_digest"] = "differs"
    found["reps"] = len(group)
    for name in ("prefill_tps", "gen_tps"):
        _, low, high = median_band([entry[name] for entry in group])
        measured = len(group) > 1 and high > 0
        found[f"{name}_low"], found[f"{name}_high"] = (low, high) if measured else (None, None)
    steps = sorted(1e3 * seconds for entry in group for seconds in entry.get("steps_s", ()))
    found["itl_p50_ms"] = statistics.median(steps) if steps else None
    found["itl_p95_ms"] = quantile(steps, 0.95) if len(steps) >= P95_FROM else None
    return found
