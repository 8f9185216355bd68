"""Where weights come from: what an architecture needs of a model file, whatever its format.

``gguf.GGUFFile`` is one, ``published.PublishedSource`` another. All offer the same attributes, with tensors described
and laid out in ggml's terms: ``dims`` innermost first, raw bytes of a storage format of ``kernels.formats``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import numpy as np

from kernels.formats import Format


class TensorInfo(Protocol):
    """One tensor: its name, dimensions (``dims`` innermost first, ``shape`` outermost first), format and place."""

    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def fmt(self) -> Format: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offset(self) -> int: ...


class Metadata(Protocol):
    """Typed entries by key; ``type_of`` gives "u32", "f32[]", "string" ... or None for a key that is not there."""

    def __contains__(self, key: object) -> bool: ...
    def __getitem__(self, key: str) -> Any: ...
    def type_of(self, key: str) -> str | None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def get(self, key: str, /) -> Any: ...
    def count(self, key: str) -> int: ...
    def first(self, key: str, count: int) -> list[Any]: ...


class Entries(Mapping[str, Any]):
    """What every ``Metadata`` is: (type, value) by key. A kind of its own says what a stored value is to the reader."""

    def __init__(self, entries: Mapping[str, tuple[str, Any]]):
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def type_of(self, key: str) -> str | None:
        """Type: "u32", "string", "f32[]", ...; None if there is no such key."""
        return self._entries[key][0] if key in self._entries else None


class TensorSource(Protocol):
    """An open model: a file, or a folder."""

    @property
    def path(self) -> str | os.PathLike[str]: ...
    @property
    def size(self) -> int: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor, uint8 (nbytes,), valid for as long as anything refers to them."""

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read a byte of every page of the weights: (bytes touched, their sum), piece by piece."""

    def close(self) -> None:
        """Give the file back."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
