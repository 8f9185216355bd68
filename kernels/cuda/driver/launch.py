"""A launch of kernels as data, which recordings keep, share and join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...formats.matrix import Matrix
from .arrays import DeviceArray


@dataclass
class Launch:
    """A call of ``function(stream, *writes, *reads, *matrices, *numbers)`` with flat arrays. ``chain`` describes a
    chain of row stages (``ops.rows.Chain``), which a recording may join with others."""

    function: Callable[..., None]
    writes: Sequence[DeviceArray]
    reads: Sequence[DeviceArray]
    numbers: Sequence[Any]
    chain: Any = None
    matrices: Sequence[Matrix] = ()

    def call(self, stream: Any) -> None:
        """Call the function now."""
        placed = [Matrix(w.fmt, w.data.flat(), w.rows, w.cols) for w in self.matrices]
        arrays = [array.flat() for array in (*self.writes, *self.reads)]
        self.function(stream, *arrays, *placed, *self.numbers)


def same_values(x: DeviceArray, y: DeviceArray) -> bool:
    """Whether two contiguous arrays are the same memory, in any shape."""
    return x.buffer is y.buffer and x.offset == y.offset and x.size == y.size
