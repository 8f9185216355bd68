"""Experts of models that are larger than the device: the first ones of every stack there, the others in host memory.

Kernels of few tokens read the latter over the bus, so such a token is a recording like any other and takes as long as
their bytes need. Of a chunk of many tokens each expert is wanted many times: then they pass through a piece of device
memory, portion by portion.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .arrays import DeviceArray
from .grids import per_value
from .launching import KernelArray as as_kernel_array
from .memory import Buffer
from .shim import cuda

STAGE_BYTES = 64 << 20
"""Bytes of device memory that experts of large chunks pass through."""


class Spread(NamedTuple):
    """What a kernel is given for a stack: experts on the device, how many they are, and the others."""

    near: Any
    slots: np.int32
    far: Any


class SplitStack(DeviceArray):
    """A stack with its first ``slots`` experts in device memory, the others page-locked in host memory (``far``).
    ``shape`` is that of the whole stack, ``flat`` are the former."""

    def __init__(self, source: np.ndarray, buffer: Buffer, slots: int, driver: Any):
        super().__init__(buffer, source.shape, np.uint8)
        self.slots = slots
        pinned = driver.pinned(source[slots:].nbytes)
        weakref.finalize(self, driver.unpin, pinned).atexit = False
        self.far = pinned.reshape(source[slots:].shape)
        np.copyto(self.far, source[slots:])
        driver.to_device(buffer.block, buffer.start, source[:slots])

    def flat(self) -> Any:
        if self._flat is None:
            self._flat = self.shaped((self.slots * self.far[0].nbytes,))
        return self._flat

    def spread(self) -> Spread:
        """The kernel's argument."""
        far = as_kernel_array(self.far.ctypes.data, (self.far.size,), np.uint8)
        return Spread(self.flat(), np.int32(self.slots), far)


class Portion(NamedTuple):
    """Experts ``first`` to ``first + len(data)`` of a stack, on the device."""

    first: int
    data: DeviceArray


def portions(stack: SplitStack, chosen: np.ndarray, owner: Any) -> Iterator[Portion]:
    """Give the experts that a chunk chose, with others between them: launch what reads a portion before the next."""
    near = DeviceArray(stack.buffer, (stack.slots, *stack.shape[1:]), np.uint8)
    yield Portion(0, near)
    most = max(1, STAGE_BYTES // stack.far[0].nbytes)
    for start in range(0, len(stack.far), most):
        some = stack.far[start : start + most]
        if np.any((chosen >= stack.slots + start) & (chosen < stack.slots + start + len(some))):
            yield Portion(stack.slots + start, owner.moved(some))


@per_value()
def gather(out, x, rows, size, n):
    """out[i] = x[rows[i]], rows of n values, ``size`` in all."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[rows[i // n] * n + i % n]


@per_value()
def scatter(out, x, rows, size, n):
    """out[rows[i]] = x[i], rows of n values, ``size`` in all."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[rows[i // n] * n + i % n] = x[i]
