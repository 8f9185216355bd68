"""What the ops of this backend are written with, whether their launches happen at once or are recorded.

An op checks its arguments, takes arrays to write to (``empty``) and hands over launches (``run``): a function that
launches kernels, what it writes, what it reads, numbers. ``backend.CUDA`` calls it, ``recording.Recording`` keeps it.
Both compute the same bits, because there is nothing else to an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..formats.matrix import Matrix
from .arrays import DeviceArray

F16, F32, I8, I16, I32, I64 = (np.dtype(kind) for kind in ("f2", "f4", "i1", "i2", "i4", "i8"))


@dataclass
class Launch:
    """One call of ``function``(stream, *writes, *reads, *numbers), arrays flat; ``chain`` describes it if it is a chain
    of row stages, which a recording may join with others."""

    function: Callable[..., None]
    writes: Sequence[DeviceArray]
    reads: Sequence[DeviceArray]
    numbers: Sequence[Any]
    chain: Any = None
    matrices: Sequence[Matrix] = field(default_factory=tuple)
    """Weights, which come between reads and numbers; such functions take a keyword ``scratch``, too."""

    def call(self, stream: Any, scratch: Callable[..., Any]) -> None:
        """Launch it now."""
        arrays = [array.flat() for array in (*self.writes, *self.reads)]
        if self.matrices:
            placed = [Matrix(w.fmt, _kernel_matrix(w), w.rows, w.cols) for w in self.matrices]
            self.function(stream, *arrays, *placed, *self.numbers, scratch=scratch)
        else:
            self.function(stream, *arrays, *self.numbers)


def same_values(x: DeviceArray, y: DeviceArray) -> bool:
    """Whether two arrays without gaps are the same values, in whatever dimensions."""
    return x.buffer is y.buffer and x.offset == y.offset and x.size == y.size


def written_between(between: Sequence[Launch], now: Launch) -> bool:
    """Whether something that ``now`` reads is written by one of the launches ``between``."""
    read = {id(array.buffer) for array in now.reads}
    return any(id(array.buffer) in read for launch in between for array in launch.writes)


def _kernel_matrix(w: Matrix) -> Any:
    data: Any = w.data
    return data.flat()


def expect(condition: bool, what: str, *shapes: object) -> None:
    """ValueError naming the op and the shapes unless ``condition``."""
    if not condition:
        raise ValueError(f"{what}: shapes do not fit: {', '.join(map(str, shapes))}")


class Steps(ABC):
    """The base of the op classes."""

    error: DeviceArray
    """int32 (1,): a kernel that meets a number out of range writes the failure's code there."""

    @abstractmethod
    def empty(self, *shape: int, dtype: DTypeLike = F32) -> DeviceArray:
        """An array for results, not initialised."""

    @abstractmethod
    def run(self, launch: Launch) -> None:
        """Launch it, now or with all others of the recording."""

    @abstractmethod
    def whole(self, x: DeviceArray, name: str) -> DeviceArray:
        """``x`` without gaps between its values."""

    @abstractmethod
    def absent(self, dtype: DTypeLike) -> DeviceArray:
        """An array that stands for None: a kernel is told not to read it."""

    def or_absent(self, x: DeviceArray | None, dtype: DTypeLike = F32) -> DeviceArray:
        """``x``, or what stands for None."""
        return self.absent(dtype) if x is None else x

    @abstractmethod
    def failure(self, text: str) -> int:
        """The code of an IndexError with this text."""

    def go(
        self, function: Callable[..., None], writes: Sequence[DeviceArray], reads: Sequence[Any], *numbers: Any
    ) -> None:
        """``run`` of one launch without weights."""
        self.run(Launch(function, writes, reads, numbers))

    # --- experts that are not all resident, which recordings do not meet

    def seen_ids(self, ids: DeviceArray, experts: int) -> np.ndarray:
        """``ids`` on the host. IndexError if one is not below ``experts``."""
        raise ValueError("a recording cannot look at the experts that were chosen")

    def moved(self, values: np.ndarray) -> DeviceArray:
        """A copy of ``values`` on the device."""
        raise ValueError("a recording cannot bring values to the device")

    def make_resident(self, stack: Any, experts: np.ndarray, wait: bool) -> None:
        """Have these experts of a ``CachedStack`` in its slots when what is launched next runs. ``wait``: what was
        launched before may still read the slots."""
        raise ValueError("a recording cannot bring experts to the device")

    # --- checks at the border: kernels trust their sizes, so shapes and types are settled before

    def typed(self, x: Any, kind: np.dtype, name: str) -> DeviceArray:
        """``x`` without gaps; TypeError if it is not of this type, or not on the device."""
        if not isinstance(x, DeviceArray):
            raise TypeError(f"{name} must be an array of this backend, not {type(x).__name__}")
        if x.dtype != kind:
            raise TypeError(f"{name} must be {kind}, not {x.dtype}")
        return x if x.contiguous else self.whole(x, name)

    def f32(self, x: Any, name: str) -> DeviceArray:
        """``x`` as a float32 array without gaps."""
        return self.typed(x, F32, name)

    def i32(self, x: Any, name: str) -> DeviceArray:
        """``x`` as an int32 array without gaps."""
        return self.typed(x, I32, name)

    def cached(self, rows: Any, name: str) -> DeviceArray:
        """Cached rows, float32 or float16."""
        return self.typed(rows, F16 if getattr(rows, "dtype", None) == F16 else F32, name)

    def position(self, at: Any, name: str) -> DeviceArray:
        """A position that kernels read when they run: int64 (1,)."""
        expect(at.shape == (1,), f"{name} is one number", at.shape)
        return self.typed(at, I64, name)

    def written(self, x: Any, kind: np.dtype, name: str) -> DeviceArray:
        """What is written in place has to be whole: ValueError if it is not."""
        if isinstance(x, DeviceArray) and not x.contiguous:
            raise ValueError(f"{name} has gaps between its values, and is written in place")
        return self.typed(x, kind, name)
