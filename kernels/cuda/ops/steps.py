"""The base class of the CUDA backend's op classes, whether their launches run at once or are recorded.

An op gets checked arguments and arrays to write to (``kernels.binding``) and passes ``Launch`` objects to ``run``: a
function that launches kernels, the arrays that it writes and reads, and numbers. ``backend.CUDA`` calls the function at
once, ``recording.Recording`` keeps the object. Both compute the same bits, because an op does all its work in launches.
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
    """The base class of the op classes. A backend or recording that has the ops must also have

    empty(*shape, dtype)   return an array for results, not initialised
    run(launch)            launch it, now or together with all others of the recording
    absent(dtype)          return an array to pass to a kernel in place of None (the kernel does not read it)
    failure(text)          return the code that stands for an IndexError with this text
    once(x, what, make)    return ``make()``, which computes ``what`` from ``x``; a recording calls it once, and returns
                           the same to later ops until something writes ``x``
    error                  int32 (1,): a kernel that meets a number out of range writes the failure's code here
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
        """Return ``x`` or, if it is None, an array of this dtype to pass to a kernel in its place."""
        array: DeviceArray = self.absent(dtype) if x is None else x
        return array

    def go(
        self, function: Callable[..., None], writes: Sequence[DeviceArray], reads: Sequence[Any], *numbers: Any
    ) -> None:
        """Run one launch, of kernels that read no weights: ``function(stream, *writes, *reads, *numbers)``. Do nothing
        if the first array to write is empty."""
        if writes[0].size:
            self.run(Launch(function, writes, reads, numbers))
