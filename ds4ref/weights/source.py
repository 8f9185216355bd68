"""The interface that model files of every format offer to architectures.

``gguf.GGUFFile``, ``published.PublishedSource`` and ``llama2c.Llama2cFile`` implement it. All describe tensors as ggml
does: ``dims`` innermost first, and raw bytes in one of the storage formats of ``ds4ref.kernels.formats``.
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
DEEPSEEKS = (DEEPSEEK, "deepseek41")
"""Architectures with DeepSeek's vocabulary and prompts."""

_DSPARK = "a DSpark drafter, no model by itself; it goes with one by --mtp, and is not computed yet"
_IMAGES = "an encoder of images, which are not read: open the model that it goes with"
NOT_MODELS = {
    "deepseek4_mtp_support": "a block for multi-token prediction, no model by itself: it goes with one by --mtp",
    "dflash": _DSPARK, "deepseek4-dspark": _DSPARK, "deepseek41-dspark": _DSPARK,
    "clip": _IMAGES, "deepseek4_vision": _IMAGES,
}  # fmt: skip
"""Files that users may take for a model that can be run: ``general.architecture`` or ``model_type`` -> what it is."""


class TensorInfo(NamedTuple):
    """Format and location of a tensor.

    fmt     storage format
    dims    dimensions in ggml order: row length first
    offset  byte offset from the start of its file
    nbytes  size in bytes
    part    number of that file in a split model, from 0
    """

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
    """Metadata of a model file: values by key. A function given as a value is called on first use."""

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
        """Return a value; of an array only the first ``count`` items (None: all), since its length is untrusted."""
        value = self[key]
        return value[:count] if isinstance(value, list) else value


class TensorSource(Protocol):
    """An open model: a file, or a folder of files. ``size`` is in bytes; ``tensors`` are by name, in file order."""

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
        """Read one byte of every page of the weights, to load them from disk; yield (bytes covered, sum of those
        read)."""

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def matrix_rows(source: TensorSource, info: TensorInfo) -> np.ndarray | ApartRows:
    """Return the bytes of a matrix, or of a stack of matrices, as an array (..., rows, row_bytes).

    It is a view of the file where possible; ``ApartRows`` if the file keeps codes and scales separately.
    """
    apart = getattr(source, "apart", None)
    rows = None if apart is None else apart(info.name)
    return source.raw(info.name).reshape(*info.shape[:-1], info.fmt.row_bytes(info.dims[0])) if rows is None else rows


def files_of(source: TensorSource) -> list[str]:
    """Return the paths of all files of a split GGUF model; of any other model, the path of its file or folder."""
    return getattr(source, "paths", [os.fspath(source.path)])


def architecture(source: TensorSource) -> str:
    """Return the architecture of a model file (``general.architecture``), or ``DEEPSEEK`` if the file has no such
    key."""
    key = "general.architecture"
    return source.metadata[key] if source.metadata.type_of(key) == "string" else DEEPSEEK


def display_name(source: TensorSource) -> str:
    """Return a name of the model to show to users: ``general.name``, or else the architecture and the file name."""
    key = "general.name"
    name = source.metadata[key] if source.metadata.type_of(key) == "string" else ""
    name = " ".join("".join(c if c.isprintable() else " " for c in name[:200]).split())
    return name or f"{architecture(source)} ({Path(source.path).resolve().name})"
