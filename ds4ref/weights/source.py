"""The interface that model files of every format offer to architectures.

``gguf.GGUFFile`` and ``published.PublishedSource`` implement it. All describe tensors in ggml's terms: ``dims``
innermost first, raw bytes of a storage format of ``ds4ref.kernels.formats``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from ds4ref.kernels.formats import ApartRows, Format

DEEPSEEK = "deepseek4"
"""Architecture assumed for files without ``general.architecture``."""


class TensorInfo(Protocol):
    """One tensor: name, dimensions (``dims`` innermost first, ``shape`` outermost first), format and location."""

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
    """Metadata values by key; ``type_of`` returns "u32", "f32[]", "string" ..., or None for an unknown key."""

    def __contains__(self, key: object) -> bool: ...
    def __getitem__(self, key: str) -> Any: ...
    def type_of(self, key: str) -> str | None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def get(self, key: str, /) -> Any: ...
    def count(self, key: str) -> int: ...
    def first(self, key: str, count: int) -> list[Any]: ...


class Entries(Mapping[str, Any]):
    """Base of every ``Metadata``: stores (type, value) by key; subclasses turn the stored value into the returned
    one."""

    def __init__(self, entries: Mapping[str, tuple[str, Any]]):
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def type_of(self, key: str) -> str | None:
        """Return the type of a key's value, "u32", "string", "f32[]", ..., or None for an unknown key."""
        return self._entries[key][0] if key in self._entries else None


class TensorSource(Protocol):
    """An open model: a file, or a folder of files."""

    @property
    def path(self) -> str | os.PathLike[str]: ...
    @property
    def size(self) -> int: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def raw(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (nbytes,), valid as long as they are referenced."""

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the weights; yield (bytes touched, their sum)."""

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def matrix_rows(source: TensorSource, info: TensorInfo) -> np.ndarray | ApartRows:
    """Return the bytes of a matrix or stack by row, (..., rows, row_bytes), without a copy where the file allows it."""
    apart = getattr(source, "apart", None)
    rows = None if apart is None else apart(info.name)
    return source.raw(info.name).reshape(*info.shape[:-1], info.fmt.row_bytes(info.dims[0])) if rows is None else rows


def architecture(source: TensorSource) -> str:
    """Return the architecture of a model file (``general.architecture``), or ``DEEPSEEK`` if the file has no such
    key."""
    key = "general.architecture"
    return source.metadata[key] if source.metadata.type_of(key) == "string" else DEEPSEEK


def display_name(source: TensorSource) -> str:
    """Return the name of a model for people: ``general.name``, else the architecture and the name of its file."""
    key = "general.name"
    name = source.metadata[key] if source.metadata.type_of(key) == "string" else ""
    name = " ".join("".join(c if c.isprintable() else " " for c in name[:200]).split())
    return name or f"{architecture(source)} ({Path(source.path).resolve().name})"
