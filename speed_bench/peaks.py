"""Measures the peak rates of this machine: memory bandwidth and arithmetic.

They are kept in the run store, and measured again after thirty days, or with other kernels or another number of
threads.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ds4ref.costs import Peaks
from ds4ref.environment import cache_bytes
from ds4ref.peaks import peaks_key
from ds4ref.runs.provenance import age, now, stamp

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

OLD = 30 * 86400.0
"""Seconds after which peaks are measured again."""
UNBOUNDED = "no shares of the bound: the weights of a token fit the last-level cache, so memory does not bind"


def machine_peaks(store: Store, threads: int) -> dict[str, Any]:
    """Return this machine's peaks from the store, measuring them if they are missing or old.

    Keys of the dict: read_gbs (GB/s), int8_gops (10^9 operations/s), f32_gflops, threads, run (number in the store),
    measured (time, UTC).
    """
    key = peaks_key(threads)
    for run in store.runs(kind="peaks"):
        fresh = (seconds := age(run.created, now())) is not None and seconds < OLD
        if fresh and all(run.fact(name) == value for name, value in key.items()):
            return {**store.rows(run.id)[0], "threads": threads, "run": run.id, "measured": run.created}
    from ds4ref.peaks import measure_peaks

    measured = {name: round(value, 3) for name, value in asdict(measure_peaks(threads)).items()}
    facts = {**stamp(), **key}
    number = store.add("peaks", facts, [measured], label=f"peaks, {threads} thread(s)")
    return {**measured, "threads": threads, "run": number, "measured": facts["created"]}


def as_peaks(measured: dict[str, Any], weight_bytes: float = float("inf")) -> Peaks | None:
    """Return the peaks of ``machine_peaks`` as ``Peaks``, for the cost model.

    ``weight_bytes`` is the size of the weights that one token needs. If they fit the last-level cache, return None,
    because memory bandwidth is then no bound.
    """
    cache = cache_bytes()
    if cache is not None and weight_bytes <= cache:
        return None
    return Peaks(**{name: float(measured[name]) for name in Peaks.__dataclass_fields__})
