"""What the ops of this backend are written with, whether their steps run at once or are recorded for later.

An op checks its arguments, takes arrays to write to (``empty``) and places for what only its own steps see (``temp``),
describes its work as steps and hands them to ``run``. ``backend.CPU`` runs them at once; ``recording.Recording`` keeps
them and runs all ops of a token as one job. Both compute the same bits, because there is nothing else to an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .abi import Step
from .workers import address

F16, F32, I32, I64 = (np.dtype(kind) for kind in ("f2", "f4", "i4", "i8"))
T = TypeVar("T")


def expect(condition: bool, what: str, *shapes: object) -> None:
    """ValueError naming the op and the shapes unless ``condition``."""
    if not condition:
        raise ValueError(f"{what}: shapes do not fit: {', '.join(map(str, shapes))}")


class Steps(ABC):
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

    @abstractmethod
    def whole(self, x: np.ndarray, name: str) -> np.ndarray:
        """``x`` without gaps between its values."""

    def at(self, x: np.ndarray | None) -> int:
        """Address of the first value, 0 for None. The caller keeps ``x`` until ``run`` has returned."""
        return 0 if x is None else address(x)

    def shared(self, key: tuple, make: Callable[[], tuple[T, list[Step]]]) -> tuple[T, list[Step]]:
        """A by-product, such as packed inputs, and the steps that make it (none if an earlier op made it)."""
        return make()

    # --- checks at the border: compiled code trusts its addresses, so shapes and types are settled before

    def _typed(self, x: np.ndarray, kind: np.dtype, name: str) -> np.ndarray:
        if x.dtype != kind:
            raise TypeError(f"{name} must be {kind}, not {x.dtype}")
        return x if x.flags.c_contiguous else self.whole(x, name)

    def f32(self, x: np.ndarray, name: str) -> np.ndarray:
        """``x`` as a C-contiguous float32 array; TypeError for another type."""
        return self._typed(x, F32, name)

    def i32(self, x: np.ndarray, name: str) -> np.ndarray:
        """``x`` as a C-contiguous int32 array; TypeError for another type."""
        return self._typed(x, I32, name)

    def cached(self, rows: np.ndarray, name: str) -> tuple[np.ndarray, int]:
        """Cached rows, float32 or float16, and whether they are the latter."""
        half = rows.dtype == F16
        return self._typed(rows, F16 if half else F32, name), int(half)

    def position(self, at: np.ndarray, name: str) -> np.ndarray:
        """A position that compiled code reads when it runs: int64 (1,)."""
        expect(at.shape == (1,), f"{name} is one number", at.shape)
        return self._typed(at, I64, name)

    def chunk(self, items: int, cost: int, grain: int = 16384) -> int:
        """Items a thread claims at once. ``cost`` is the rough number of float operations per item; a chunk is worth
        ``grain`` of them (a few microseconds, so small jobs stay on the calling thread) and there are at most about 8
        chunks a thread."""
        return max(1, grain // max(1, cost), items // (8 * self.threads))
