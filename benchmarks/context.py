"""Settings and results shared by the sections of ``benchmarks.cpu``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ds4ref.engine import Engine

from .goals import GOALS
from .report import Row, row
from .timing import Budget


@dataclass
class Context:
    """Settings of one run, and the rows measured so far.

    quick   small sizes and few rounds
    model   path of the model slice to measure
    """

    quick: bool
    threads: int
    model: str
    budget: Budget
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Number of rounds per figure."""
        return 3 if self.quick else 9

    @cached_property
    def engine(self) -> Engine:
        """The engine on the model slice in mode ds4, opened once with every page mapped.

        Figures then measure arithmetic and memory, not page faults of experts used for the first time.
        """
        engine = Engine.open(self.model, numerics="ds4", threads=self.threads)
        for _ in engine.source.touch():
            pass
        return engine

    def add(self, name: str, samples: list[float], note: str = "") -> None:
        """Add the row of a figure in ``GOALS`` with one sample per round."""
        self.rows[name] = row(GOALS[name], samples, note)

    def skip(self, name: str, why: str) -> None:
        """Add the row of a figure that was not measured, with the reason."""
        self.rows.setdefault(name, row(GOALS[name], [], why))
