"""A launch of kernels as data, which recordings keep, share, join and reorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...formats.matrix import Matrix
from .arrays import DeviceArray
from .experts import SplitStack


@dataclass
class Launch:
    """A call of ``function(stream, *writes, *reads, *numbers)`` with flat arrays. ``chain`` describes a chain of row
    stages (``rows.stages.Chain``), which a recording may join with others."""

    function: Callable[..., None]
    writes: Sequence[DeviceArray]
    reads: Sequence[DeviceArray]
    numbers: Sequence[Any]
    chain: Any = None
    matrices: Sequence[Matrix] = field(default_factory=tuple)
    """Weights, passed between reads and numbers; such functions take a keyword ``scratch``, too."""

    def call(self, stream: Any, scratch: Callable[..., Any]) -> None:
        """Call the function now."""
        arrays = [array.flat() for array in (*self.writes, *self.reads)]
        if self.matrices:
            placed = [Matrix(w.fmt, _kernel_matrix(w), w.rows, w.cols) for w in self.matrices]
            self.function(stream, *arrays, *placed, *self.numbers, scratch=scratch)
        else:
            self.function(stream, *arrays, *self.numbers)


def same_values(x: DeviceArray, y: DeviceArray) -> bool:
    """Whether two contiguous arrays are the same memory, in any shape."""
    return x.buffer is y.buffer and x.offset == y.offset and x.size == y.size


def written_between(between: Sequence[Launch], reader: Launch) -> bool:
    """Whether one of the launches ``between`` writes an array that ``reader`` reads."""
    read = {id(array.buffer) for array in reader.reads}
    return any(id(array.buffer) in read for launch in between for array in launch.writes)


def _kernel_matrix(w: Matrix) -> Any:
    data: Any = w.data
    return data.spread() if isinstance(data, SplitStack) else data.flat()
