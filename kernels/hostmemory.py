"""Memory of backends that compute where NumPy does: its arrays are theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from .formats.matrix import Matrix


class HostMemory:
    """The methods for memory of ``ops.Backend``."""

    def array(self, *shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
        """A new array. Untouched pages take no memory; values are undefined."""
        return np.empty(shape, dtype)

    def upload(self, values: np.ndarray) -> np.ndarray:
        """``values`` where ops can read them: the array itself, if it is C-contiguous."""
        return np.ascontiguousarray(values)

    def place(self, w: Matrix) -> Matrix:
        """``w`` itself: rows are read where the file is mapped."""
        return w

    def fill(self, array: np.ndarray, values: np.ndarray | float) -> None:
        """Overwrite ``array`` (or a part of it, by basic indexing) with values of the host."""
        array[...] = values

    def host(self, array: np.ndarray) -> np.ndarray:
        """``array`` as NumPy sees it: itself, not a copy."""
        return array
