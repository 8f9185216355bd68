"""What the ops of this backend are written with, whether their launches happen at once or are recorded.

An op gets checked arguments and arrays to write to (``kernels.binding``) and hands over launches (``run``): a function
that launches kernels, what it writes, what it reads, numbers. ``backend.CUDA`` calls it, ``recording.Recording`` keeps
it. Both compute the same bits, because there is nothing else to an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from numpy.typing import DTypeLike

from ...binding import F32, Binding
from ..driver.arrays import DeviceArray
from ..driver.launch import Launch


class Steps(Binding):
    """The base of the op classes. A backend or a recording has besides

    empty(*shape, dtype)   an array for results, not initialised
    run(launch)            launch it, now or with all others of the recording
    absent(dtype)          an array that stands for None: a kernel is told not to read it
    failure(text)          the code of an IndexError with this text
    once(x, what, make)    what ``make`` made of ``x``, in a recording once for as long as nothing writes ``x``
    error                  int32 (1,): a kernel that meets a number out of range writes the failure's code there
    """

    array_type = DeviceArray
    gapless = staticmethod(attrgetter("contiguous"))
    empty: Any
    run: Any
    absent: Any
    failure: Any
    once: Any
    error: DeviceArray

    def overlap(self, x: DeviceArray, y: DeviceArray) -> bool:
        return x.buffer is y.buffer and x.offset < y.offset + y.nbytes and y.offset < x.offset + x.nbytes

    def or_absent(self, x: DeviceArray | None, dtype: DTypeLike = F32) -> DeviceArray:
        """``x``, or what stands for None."""
        array: DeviceArray = self.absent(dtype) if x is None else x
        return array

    def go(
        self, function: Callable[..., None], writes: Sequence[DeviceArray], reads: Sequence[Any], *numbers: Any
    ) -> None:
        """``run`` of one launch without weights; of none, if nothing is to be written."""
        if writes[0].size:
            self.run(Launch(function, writes, reads, numbers))
