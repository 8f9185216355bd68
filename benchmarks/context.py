"""Settings of one run of ``benchmarks.cpu``, which its sections share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ds4ref.engine import Engine

from .harness import Budget


@dataclass
class Context:
    """``quick``: small sizes and few rounds; ``model``: path of the model slice to measure."""

    quick: bool
    threads: int
    model: str
    budget: Budget

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
