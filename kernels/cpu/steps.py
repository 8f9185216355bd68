"""The base class of the CPU backend's op classes, whether their steps run at once or are recorded.

An op gets checked arguments and output arrays (``kernels.binding``), takes scratch memory (``temp``), describes its
work as steps (``abi.Step``: a compiled task, its arguments and how to divide it among threads) and hands them to
``run``. ``backend.CPU`` runs them at once; ``recording.Recording`` records all ops of a token and runs them as one job.
Both compute the same bits, because an op does all its work in its steps.
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
    """Return 1 if cache rows are float16, else 0 (also for None): the form in which tasks take it."""
    return int(rows is not None and rows.dtype == F16)


class Steps(Binding, ABC):
    """The base class of the op classes; subclasses run the steps at once or record them."""

    threads: int
    """Number of threads among which a step is divided."""

    @abstractmethod
    def empty(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        """Return an uninitialised array for results."""

    @abstractmethod
    def temp(self, size: int) -> int:
        """Return the address of ``size`` bytes of scratch memory, 128-byte aligned, for the steps of this op only."""

    @abstractmethod
    def run(self, steps: Sequence[Step], failure: str = "") -> None:
        """Run the op's steps in order; raise IndexError(failure) if one of them sets its error flag."""

    def at(self, x: np.ndarray | None) -> int:
        """Return the address of the first value of ``x``, 0 for None; the caller must keep ``x`` alive until ``run``
        has returned."""
        return 0 if x is None else address(x)

    def shared(self, key: tuple, make: Callable[[], tuple[T, list[Step]]]) -> tuple[T, list[Step]]:
        """Return a by-product that several ops can use, such as packed inputs, and the steps that compute it.

        ``key`` identifies it; ``make`` returns both. A recording calls ``make`` once per key, and returns no steps to
        later ops.
        """
        return make()

    def chunk(self, items: int, cost: int, grain: int = 16384) -> int:
        """Return the number of items of a step that a thread claims at once (a chunk).

        ``cost`` is the rough number of float operations per item. A chunk has about ``grain`` operations (a few
        microseconds, so that small jobs stay on the calling thread), more if there would be over 8 chunks per thread.
        """
        least = max(1, grain // max(1, cost))
        return least if items <= least else max(least, items // (8 * self.threads))
