"""Arrays in device memory: shape, dtype, basic slicing and reshape, without arithmetic.

Kernels take arrays as one-dimensional (``flat``) and their sizes as numbers, so that one compiled kernel serves arrays
of any number of axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .launching import KernelArray as as_kernel_array
from .memory import Buffer


class DeviceArray:
    """An array in device memory: a strided view of a ``Buffer``; ``offset`` and ``strides`` are in bytes."""

    __slots__ = ("_flat", "buffer", "dtype", "offset", "shape", "strides")

    def __init__(
        self, buffer: Buffer, shape: Sequence[int], dtype: DTypeLike, offset: int = 0, strides: Any = None
    ) -> None:
        self.buffer, self.shape, self.dtype, self.offset = buffer, tuple(shape), np.dtype(dtype), offset
        self.strides: tuple[int, ...] = _packed(self.shape, self.dtype.itemsize) if strides is None else tuple(strides)
        self._flat: Any = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the values are stored in C order without gaps."""
        wanted = self.dtype.itemsize
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != wanted and self.size:
                return False
            wanted *= length
        return True

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no dimensions has no length")
        return self.shape[0]

    def __getitem__(self, at: Any) -> DeviceArray:
        """Return a view by basic indexing: integers, slices, None, an ellipsis."""
        keys = at if isinstance(at, tuple) else (at,)
        used = sum(key is not None and key is not Ellipsis for key in keys)
        if used > self.ndim:
            raise IndexError(f"{used} indices for {self.ndim} axes")
        if Ellipsis not in keys:
            keys = (*keys, Ellipsis)
        dots = keys.index(Ellipsis)
        keys = (*keys[:dots], *[slice(None)] * (self.ndim - used), *keys[dots + 1 :])
        shape, strides, offset, axis = [], [], self.offset, 0
        for key in keys:
            if key is None:
                shape.append(1)
                strides.append(0)
                continue
            length, stride = self.shape[axis], self.strides[axis]
            axis += 1
            if isinstance(key, slice):
                start, stop, step = key.indices(length)
                offset += start * stride
                shape.append(len(range(start, stop, step)))
                strides.append(stride * step)
            elif isinstance(key, int | np.integer):
                index = int(key) + (length if key < 0 else 0)
                if not 0 <= index < length:
                    raise IndexError(f"index {key} is outside an axis of {length}")
                offset += index * stride
            else:
                raise TypeError(f"an array on a device takes basic indices, not {type(key).__name__}")
        return DeviceArray(self.buffer, shape, self.dtype, offset, strides)

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view with another shape, one size of which may be -1 (whatever fits).

        Raise ValueError if the array is not contiguous or does not have that many values.
        """
        wanted = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        if not self.contiguous:
            raise ValueError("an array with gaps between its values cannot be reshaped")
        known = math.prod(length for length in wanted if length != -1)
        whole = tuple(self.size // max(1, known) if length == -1 else int(length) for length in wanted)
        if math.prod(whole) != self.size:
            raise ValueError(f"{self.shape} cannot be reshaped to {wanted}")
        return DeviceArray(self.buffer, whole, self.dtype, self.offset)

    def flat(self) -> Any:
        """Return the array as an argument of a kernel: its values in one dimension. It must be contiguous.

        Raise RuntimeError for a result of a recording that is not sealed, which has no memory yet.
        """
        if self._flat is None:
            block = self.buffer.block
            if block is None:
                raise RuntimeError("a place of a recording has no memory before it is sealed")
            self._flat = as_kernel_array(block.pointer + self.buffer.start + self.offset, self.size, self.dtype)
        return self._flat

    def move(self, buffer: Buffer) -> None:
        """Let this array refer to the beginning of another buffer, without copying values. Views made before still
        refer to the old one."""
        self.buffer, self.offset, self._flat = buffer, 0, None

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("this array lives on the device: the backend's host() copies it")

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype})"


def _packed(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, stride = [], itemsize
    for length in reversed(shape):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))
