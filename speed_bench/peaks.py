"""This machine's peaks: measured once for a processor and a number of threads, then remembered in the run store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ds4ref.costs import Peaks
from ds4ref.environment import cpu_name
from ds4ref.runs.provenance import stamp

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


def known_peaks(store: Store, threads: int) -> dict[str, Any] | None:
    """The newest measurement for this processor and so many threads."""
    cpu = cpu_name()
    for run in store.runs(kind="peaks"):
        if run.fact("machine", "cpu") == cpu and run.fact("threads") == threads:
            rows = store.rows(run.id)
            if rows and all(isinstance(rows[0].get(name), (int, float)) for name in Peaks.__dataclass_fields__):
                return {**rows[0], "threads": threads, "run": run.id}
    return None


def machine_peaks(store: Store | None, threads: int, again: bool = False) -> dict[str, Any]:
    """``read_gbs``, ``int8_gops``, ``f32_gflops``, ``threads``; measured now if they are not known."""
    found = known_peaks(store, threads) if store is not None and not again else None
    if found is not None:
        return found
    from ds4ref.peaks import measure_peaks

    measured = {name: round(value, 3) for name, value in asdict(measure_peaks(threads)).items()}
    facts = {**stamp(), "threads": threads}
    number = store.add("peaks", facts, [measured], label=f"peaks, {threads} thread(s)") if store is not None else None
    return {**measured, "threads": threads, "run": number}


def as_peaks(found: dict[str, Any]) -> Peaks:
    """For the cost model."""
    return Peaks(**{name: float(found[name]) for name in Peaks.__dataclass_fields__})
