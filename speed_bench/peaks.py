"""This machine's peak rates, measured once per machine, kernels and number of threads, then read from the run store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import duration
from ds4ref.costs import Peaks
from ds4ref.environment import cache_bytes
from ds4ref.peaks import peaks_key
from ds4ref.runs.provenance import age, now, stamp

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


def known_peaks(store: Store, threads: int) -> dict[str, Any] | None:
    """Return the newest stored peaks for this machine, these kernels and ``threads``; None if there are none."""
    key = peaks_key(threads)
    for run in store.runs(kind="peaks"):
        if all(run.fact(name) == value for name, value in key.items()):
            rows = store.rows(run.id)
            if rows and all(isinstance(rows[0].get(name), (int, float)) for name in Peaks.__dataclass_fields__):
                return {**rows[0], "threads": threads, "run": run.id, "measured": run.created}
    return None


def machine_peaks(store: Store | None, threads: int, again: bool = False) -> dict[str, Any]:
    """Return this machine's peaks from the store, measuring them if they are missing or ``again`` is set.

    Keys: read_gbs (GB/s), int8_gops, f32_gflops, threads, run (number in the store), measured (time, UTC).
    """
    stored = known_peaks(store, threads) if store is not None and not again else None
    if stored is not None:
        return stored
    from ds4ref.peaks import measure_peaks

    measured = {name: round(value, 3) for name, value in asdict(measure_peaks(threads)).items()}
    facts = {**stamp(), **peaks_key(threads)}
    number = store.add("peaks", facts, [measured], label=f"peaks, {threads} thread(s)") if store is not None else None
    return {**measured, "threads": threads, "run": number, "measured": facts["created"]}


def as_peaks(measured: dict[str, Any], weight_bytes: float = float("inf")) -> Peaks | None:
    """Convert to the cost model's peaks; None if the weights fit the last-level cache, where memory is no bound."""
    cache = cache_bytes()
    if cache is not None and weight_bytes <= cache:
        return None
    return Peaks(**{name: float(measured[name]) for name in Peaks.__dataclass_fields__})


def remark(measured: dict[str, Any], bounded: bool) -> str | None:
    """Return a warning about shares of the bound computed from these peaks; None if there is none."""
    if not bounded:
        return "no shares of the bound: the weights of a token fit the last-level cache, so memory does not bind"
    seconds = age(measured["measured"], now())
    if seconds is None or seconds < 3600:
        return None
    return (
        f"peaks of this machine are {duration(seconds)} old (run {measured['run']}): ds4-bench peaks measures them anew"
    )
