"""Memory methods of backends whose arrays are NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from .formats.matrix import Matrix


class HostMemory:
    """Implementation of the memory methods of ``ops.Backend`` for NumPy arrays."""

    def array(self, *shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Return a new array with undefined values; untouched pages take no memory."""
        return np.empty(shape, dtype)

    def upload(self, values: np.ndarray) -> np.ndarray:
        """Return ``values`` as an array that ops can read: the same array if it is C-contiguous, else a copy."""
        return np.ascontiguousarray(values)

    def place(self, w: Matrix) -> Matrix:
        """Return ``w`` itself: ops read rows from the mapped file."""
        return w

    def fill(self, array: np.ndarray, values: np.ndarray | float) -> None:
        """Overwrite ``array``, or a view of a part, with host values."""
        array[...] = values

    def host(self, array: np.ndarray) -> np.ndarray:
        """Return ``array`` itself, which is a NumPy array."""
        return array
