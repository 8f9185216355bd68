"""What the ops of this backend are written with, whether their steps run at once or are recorded for later.

An op gets checked arguments and arrays to write to (``kernels.binding``), takes places for what only its own steps see
(``temp``), describes its work as steps and hands them to ``run``. ``backend.CPU`` runs them at once;
``recording.Recording`` keeps them and runs all ops of a token as one job. Both compute the same bits, because there is
nothing else to an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..binding import F16, F32, Binding
from .abi import Step, Task
from .workers import address

T = TypeVar("T")


def is_half(rows: np.ndarray | None) -> int:
    """Whether cached rows are float16, as a task takes it."""
    return int(rows is not None and rows.dtype == F16)


class Steps(Binding, ABC):
    """The base of the op classes."""

    threads: int
    """Threads that share a step."""

    @abstractmethod
    def empty(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        """An array for results, not initialised."""

    @abstractmethod
    def temp(self, size: int) -> int:
        """Address of ``size`` bytes, 128-byte aligned, that nothing but steps of this op read and write."""

    @abstractmethod
    def run(self, steps: Sequence[Step], failure: str = "") -> None:
        """The op's steps, one after the other. If one of them sets its error flag: IndexError(failure)."""

    def go(
        self, task: Task, items: int, cost: int, arrays: Sequence[np.ndarray | None], *numbers: float, failure: str = ""
    ) -> None:
        """``run`` of one step with the addresses of ``arrays``, then ``numbers``; ``cost`` is that of ``chunk``."""
        self.run([Step(task, items, self.chunk(items, cost), (*map(self.at, arrays), *numbers))], failure)

    def at(self, x: np.ndarray | None) -> int:
        """Address of the first value, 0 for None. The caller keeps ``x`` until ``run`` has returned."""
        return 0 if x is None else address(x)

    def shared(self, key: tuple, make: Callable[[], tuple[T, list[Step]]]) -> tuple[T, list[Step]]:
        """A by-product, such as packed inputs, and the steps that make it (none if an earlier op made it)."""
        return make()

    def chunk(self, items: int, cost: int, grain: int = 16384) -> int:
        """Items a thread claims at once. ``cost`` is the rough number of float operations per item; a chunk is worth
        ``grain`` of them (a few microseconds, so small jobs stay on the calling thread) and there are at most about 8
        chunks a thread."""
        least = max(1, grain // max(1, cost))
        return least if items <= least else max(least, items // (8 * self.threads))
