"""What the ops of this backend are written with, whether their launches happen at once or are recorded.

An op gets checked arguments and arrays to write to (``kernels.binding``) and hands over launches (``run``): a function
that launches kernels, what it writes, what it reads, numbers. ``backend.CUDA`` calls it, ``recording.Recording`` keeps
it. Both compute the same bits, because there is nothing else to an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...binding import F32, Binding
from ..driver.arrays import DeviceArray
from ..driver.launch import Launch


class Steps(Binding, ABC):
    """The base of the op classes."""

    array_type = DeviceArray
    gapless = staticmethod(attrgetter("contiguous"))
    lock: Any = nullcontext()
    """What makes ops of several threads take turns."""
    host: Any
    """Brings an array to the host, where launches happen at once."""
    error: DeviceArray
    """int32 (1,): a kernel that meets a number out of range writes the failure's code there."""

    @abstractmethod
    def empty(self, *shape: int, dtype: DTypeLike = F32) -> DeviceArray:
        """An array for results, not initialised."""

    def overlap(self, x: DeviceArray, y: DeviceArray) -> bool:
        return x.buffer is y.buffer and x.offset < y.offset + y.nbytes and y.offset < x.offset + x.nbytes

    @abstractmethod
    def run(self, launch: Launch) -> None:
        """Launch it, now or with all others of the recording."""

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
        """``run`` of one launch without weights; of none, if nothing is to be written."""
        if writes[0].size:
            self.run(Launch(function, writes, reads, numbers))

    @abstractmethod
    def moved(self, values: np.ndarray) -> DeviceArray:
        """A copy of ``values`` on the device."""
