"""The interface that model files of every format offer to architectures.

``gguf.GGUFFile`` and ``published.PublishedSource`` implement it. All describe tensors in ggml's terms: ``dims``
innermost first, raw bytes of a storage format of ``ds4ref.kernels.formats``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ds4ref.kernels.formats import ApartRows, Format

DEEPSEEK = "deepseek4"
"""Architecture assumed for files without ``general.architecture``."""

_DSPARK = "a DSpark drafter, no model by itself; it goes with one by --mtp, and is not computed yet"
_IMAGES = "an encoder of images, which are not read: open the model that it goes with"
NOT_MODELS = {
    "deepseek41": "DeepSeek V4.1, which is not computed yet",
    "deepseek_v41": "DeepSeek V4.1, which is not computed yet",
    "deepseek4_mtp_support": "a block for multi-token prediction, no model by itself: it goes with one by --mtp",
    "dflash": _DSPARK, "deepseek4-dspark": _DSPARK, "deepseek41-dspark": _DSPARK,
    "clip": _IMAGES, "deepseek4_vision": _IMAGES,
}  # fmt: skip
"""What else lies beside DeepSeek's models: ``general.architecture`` or ``model_type`` -> what it is."""


class TensorInfo(NamedTuple):
    """Format and location of a tensor: ``dims`` in ggml order (row length first), ``offset`` from the start of its
    file, ``part`` the number of that file in a split model, from 0."""

    name: str
    fmt: Format
    dims: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dimensions in NumPy order, slowest first."""
        return self.dims[::-1]


class Metadata(Mapping[str, Any]):
    """Metadata values by key; a value that is a function is computed on first use."""

    def __init__(self, entries: Iterable[tuple[str, str, Any]] = ()):
        """Take (key, type, value) of each entry."""
        self._entries = {key: (kind, value) for key, kind, value in entries}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        kind, value = self._entries[key]
        if callable(value):
            value = value()
            self._entries[key] = kind, value
        return value

    def type_of(self, key: str) -> str | None:
        """Return the type of a key's value, "u32", "string", "f32[]", ..., or None for an unknown key."""
        return self._entries[key][0] if key in self._entries else None

    def count(self, key: str) -> int:
        """Return the number of items of an array, 1 for a scalar; raise KeyError for an unknown key."""
        value = self[key]
        return len(value) if isinstance(value, list) else 1

    def first(self, key: str, count: int | None) -> Any:
        """Return a value; of an array only the first ``count`` items, a bound for arrays of untrusted length."""
        value = self[key]
        return value[:count] if isinstance(value, list) else value


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


def files_of(source: TensorSource) -> list[str]:
    """Return the paths of all parts of a model in several GGUF files, else the path of the file or folder."""
    return getattr(source, "paths", [os.fspath(source.path)])


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
