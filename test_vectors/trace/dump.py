"""A dump of an engine's intermediates: tensors under the engine's own names, with values loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DumpChunk:
    """A whole tensor of a file, or one of several consecutive runs of tokens that it was written in.

    load       read the values
    first      position of its first token, if the file says
    partial    only some values are known, the others are NaN; ``total`` is then the sum of all, if the file says
    decimals   digits after the decimal point, for printed values
    positions  token positions of its rows, if the file lists them
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
    """All tensors of a file or folder under their own names, with token ids and positions if the file has them.

    about  the file's manifest, if it has one
    """

    path: str
    tensors: dict[str, list[DumpChunk]] = field(default_factory=dict)
    ids: list[int] | None = None
    positions: list[int] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, chunk: DumpChunk) -> None:
        """Append one more chunk of tensor ``name``."""
        self.tensors.setdefault(name, []).append(chunk)
