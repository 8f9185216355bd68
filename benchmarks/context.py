"""Settings of one run of ``benchmarks.cpu``, shared by the sections of its table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ds4ref.engine import Engine
from ds4ref.errors import UsageError

from .harness import Budget


@dataclass
class Context:
    """What the sections of a run share.

    quick: whether to measure with small sizes and few rounds
    model: path of the model slice to measure
    """

    quick: bool
    threads: int
    model: str
    budget: Budget

    @property
    def rounds(self) -> int:
        """Return the number of rounds per figure."""
        return 3 if self.quick else 9

    @cached_property
    def engine(self) -> Engine:
        """Return the engine on the model slice in mode ds4 (V4.1: qat), opened once, with every page mapped.

        Figures then measure arithmetic and memory rather than page faults of experts used for the first time.
        """
        try:
            engine = Engine.open(self.model, numerics="ds4", threads=self.threads)
        except UsageError:  # V4.1 has no such mode
            engine = Engine.open(self.model, numerics="qat", threads=self.threads)
        for _ in engine.source.touch():
            pass
        return engine
