"""The base of the CPU backend's op classes, whether their steps run at once or are recorded.

An op gets checked arguments and output arrays (``kernels.binding``), takes scratch memory (``temp``), describes its
work as steps and hands them to ``run``. ``backend.CPU`` runs them at once; ``recording.Recording`` records all ops of a
token and runs them as one job. Both compute the same bits, because an op does all its work in its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..binding import F16, F32, Binding
from .abi import Step
from .workers import address

T = TypeVar("T")


def is_half(rows: np.ndarray | None) -> int:
    """Return 1 if cached rows are float16, else 0, as tasks expect it."""
    return int(rows is not None and rows.dtype == F16)


class Steps(Binding, ABC):
    """The base of the op classes."""

    threads: int
    """Number of threads that share a step."""

    @abstractmethod
    def empty(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        """Return an uninitialised array for results."""

    @abstractmethod
    def temp(self, size: int) -> int:
        """Return the address of ``size`` bytes, 128-byte aligned, private to the steps of this op."""

    @abstractmethod
    def run(self, steps: Sequence[Step], failure: str = "") -> None:
        """Run the op's steps in order; raise IndexError(failure) if one of them sets its error flag."""

    def at(self, x: np.ndarray | None) -> int:
        """Return the address of the first value, 0 for None; the caller must keep ``x`` alive until ``run`` has
        returned."""
        return 0 if x is None else address(x)

    def shared(self, key: tuple, make: Callable[[], tuple[T, list[Step]]]) -> tuple[T, list[Step]]:
        """Return a by-product of an op, such as packed inputs, and the steps that make it (none if an earlier op made
        it)."""
        return make()

    def chunk(self, items: int, cost: int, grain: int = 16384) -> int:
        """Return the number of items that a thread claims at once.

        ``cost`` is the rough number of float operations per item; a chunk has about ``grain`` operations (a few
        microseconds, so that small jobs stay on the calling thread), and there are at most about 8 chunks per thread.
        """
        least = max(1, grain // max(1, cost))
        return least if items <= least else max(least, items // (8 * self.threads))
