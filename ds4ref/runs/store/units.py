"""Units of a large job, each done once, which makes the job resumable.

A unit is a name within a job. It is done when its result is stored, in one transaction with the runs it produced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .runs import Store


@dataclass(frozen=True)
class Unit:
    """One unit of a job.

    attempts  number of failed and successful attempts
    error     error of the last attempt, None if there was none
    result    None until the unit is done
    run       id of the first run that it produced
    """

    name: str
    attempts: int
    error: str | None
    result: dict[str, Any] | None
    run: int | None

    @property
    def done(self) -> bool:
        """Return whether the unit is done."""
        return self.result is not None


class Job:
    """The units of one job in a store."""

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name

    def declare(self, names: Iterable[str]) -> None:
        """Add units to the job; existing ones keep their state."""
        with self.store.writing() as db:
            db.executemany("INSERT OR IGNORE INTO units (job, unit) VALUES (?, ?)", [(self.name, n) for n in names])

    def units(self) -> dict[str, Unit]:
        """Return all units by name."""
        query = "SELECT unit, attempts, error, result, run FROM units WHERE job = ? ORDER BY unit"
        with self.store.reading() as db:
            lines = db.execute(query, (self.name,)).fetchall()
        return {n: Unit(n, a, e, None if r is None else json.loads(r), run) for n, a, e, r, run in lines}

    def finish(self, name: str, result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Store a unit's result with its runs (arguments of ``Store.add``) and return the stored result.

        The ids of the runs become ``result["runs"]``. The first stored result counts: a unit done twice, because its
        worker was wrongly believed lost, adds no second run.
        """
        with self.store.writing() as db:
            known = db.execute(
                "SELECT result FROM units WHERE job = ? AND unit = ? AND result IS NOT NULL", (self.name, name)
            ).fetchone()
            if known is not None:
                return dict(json.loads(known[0]))
            numbers = [self.store.insert(**run) for run in runs]
            stored = {**result, "runs": numbers}
            db.execute(
                "INSERT INTO units (job, unit, run, attempts, result) VALUES (?, ?, ?, 1, ?) ON CONFLICT (job, unit) "
                "DO UPDATE SET run = excluded.run, attempts = attempts + 1, error = NULL, result = excluded.result",
                (self.name, name, numbers[0] if numbers else None, json.dumps(stored)),
            )
            return stored

    def fail(self, name: str, error: str) -> None:
        """Record an error of a unit, which the next run of the job tries again."""
        with self.store.writing() as db:
            db.execute(
                "INSERT INTO units (job, unit, attempts, error) VALUES (?, ?, 1, ?) ON CONFLICT (job, unit) "
                "DO UPDATE SET attempts = attempts + 1, error = excluded.error",
                (self.name, name, error),
            )
