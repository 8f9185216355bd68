"""Pieces of a large job, done once whoever does them: what makes a job resumable.

A unit is a name within a job. It is done when its result is here; its run, if it left one, is in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .runs import Store


@dataclass(frozen=True)
class Unit:
    """One piece: ``result`` None until it is done, ``error`` of the last time, ``run`` the first one it left."""

    name: str
    attempts: int
    error: str | None
    result: dict[str, Any] | None
    run: int | None

    @property
    def done(self) -> bool:
        """Whether it need not be done again."""
        return self.result is not None


class Job:
    """The units of one job in a store."""

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name

    def declare(self, names: Iterable[str]) -> None:
        """Units that belong to the job; those it knows keep their state."""
        with self.store.writing() as db:
            db.executemany("INSERT OR IGNORE INTO units (job, unit) VALUES (?, ?)", [(self.name, n) for n in names])

    def units(self) -> dict[str, Unit]:
        """All of them by name."""
        query = "SELECT unit, attempts, error, result, run FROM units WHERE job = ? ORDER BY unit"
        with self.store.reading() as db:
            lines = db.execute(query, (self.name,)).fetchall()
        return {n: Unit(n, a, e, None if r is None else json.loads(r), run) for n, a, e, r, run in lines}

    def finish(self, name: str, result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """A unit's result, with the runs it left (arguments of ``Store.add``), whose numbers become ``result["runs"]``.
        The first result stays: a unit that was done twice, because a worker was only believed to be lost, leaves no
        second run. The result as it is kept."""
        with self.store.writing() as db:
            known = db.execute(
                "SELECT result FROM units WHERE job = ? AND unit = ? AND result IS NOT NULL", (self.name, name)
            ).fetchone()
            if known is not None:
                return dict(json.loads(known[0]))
            numbers = [self.store.insert(**run) for run in runs]
            kept = {**result, "runs": numbers}
            db.execute(
                "INSERT INTO units (job, unit, run, attempts, result) VALUES (?, ?, ?, 1, ?) ON CONFLICT (job, unit) "
                "DO UPDATE SET run = excluded.run, attempts = attempts + 1, error = NULL, result = excluded.result",
                (self.name, name, numbers[0] if numbers else None, json.dumps(kept)),
            )
            return kept

    def fail(self, name: str, error: str) -> None:
        """What went wrong; the unit will be tried again next time."""
        with self.store.writing() as db:
            db.execute(
                "INSERT INTO units (job, unit, attempts, error) VALUES (?, ?, 1, ?) ON CONFLICT (job, unit) "
                "DO UPDATE SET attempts = attempts + 1, error = excluded.error",
                (self.name, name, error),
            )
