"""A dump of an engine's intermediates: tensors under the engine's own names, with values loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DumpChunk:
    """A whole tensor of a file, or its part for one run of consecutive tokens.

    load       function that reads the values
    first      position of the chunk's first token, if the file says
    partial    whether only some values are known, the others NaN
    total      sum of all values, known and unknown, if the file says
    decimals   digits after the decimal point, for printed values
    positions  token positions of the chunk's rows, if the file lists them
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]
    first: int | None = None
    partial: bool = False
    total: float | None = None
    decimals: int | None = None
    positions: tuple[int, ...] | None = None


@dataclass
class Dump:
    """All tensors of a file or folder under the engine's own names.

    path       the file or folder
    tensors    chunks by name, in the order in which they were written
    ids        token ids of the pass, if the file has them
    positions  token positions of the rows, if the file has them
    about      the file's manifest, if it has one
    """

    path: str
    tensors: dict[str, list[DumpChunk]] = field(default_factory=dict)
    ids: list[int] | None = None
    positions: list[int] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, chunk: DumpChunk) -> None:
        """Append one more chunk of tensor ``name``."""
        self.tensors.setdefault(name, []).append(chunk)
