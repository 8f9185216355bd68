"""A launch of kernels as a data object, so that recordings can keep launches, join them, and repeat them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...formats.matrix import Matrix
from .arrays import DeviceArray


@dataclass
class Launch:
    """A future call of ``function(stream, *writes, *reads, *matrices, *numbers)``, which launches one or more kernels.

    writes, reads: arrays that the kernels write and read, passed as one-dimensional
    numbers: other arguments
    chain: for a chain of row stages (``ops.rows.Chain``), its description, by which a recording may join it with others
    matrices: weights that the kernels read
    """

    function: Callable[..., None]
    writes: Sequence[DeviceArray]
    reads: Sequence[DeviceArray]
    numbers: Sequence[Any]
    chain: Any = None
    matrices: Sequence[Matrix] = ()

    def call(self, stream: Any) -> None:
        """Call the function now, on this CUDA stream."""
        placed = [Matrix(w.fmt, w.data.flat(), w.rows, w.cols) for w in self.matrices]
        arrays = [array.flat() for array in (*self.writes, *self.reads)]
        self.function(stream, *arrays, *placed, *self.numbers)


def same_values(x: DeviceArray, y: DeviceArray) -> bool:
    """Return whether two contiguous arrays are exactly the same memory; their shapes may differ."""
    return x.buffer is y.buffer and x.offset == y.offset and x.size == y.size
