"""Constants and sizes of the GGUF v3 file format, shared by reader and writer (docs/explanation/model.md 2.1).

Metadata types are written as short names: ``u32``, ``f32``, ``bool``, ``string``; ``u32[]`` is an array of u32.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod

from ds4ref.kernels.formats import FORMATS

from ..errors import BackendError

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

STRING_ID, ARRAY_ID = 8, 9

# Fixed-size metadata types: id -> (name, struct format). Booleans are one byte, 0 or 1.
SCALARS: dict[int, tuple[str, str]] = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    7: ("bool", "<B"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}
TYPE_IDS: dict[str, int] = {name: type_id for type_id, (name, _) in SCALARS.items()} | {"string": STRING_ID}


def require_posix() -> None:
    """Raise BackendError where the system calls for model files (such as pread) are missing, as on Windows."""
    if not (hasattr(os, "pread") and hasattr(os, "O_CLOEXEC")):
        raise BackendError("model files need a POSIX system to be read and written: on Windows, use WSL")


def align_up(position: int, alignment: int) -> int:
    """Return the first multiple of ``alignment`` at or after ``position``."""
    return -(-position // alignment) * alignment


@dataclass(frozen=True)
class TensorSpec:
    """Name, storage format and dimensions of a tensor to be written; ``dims`` in ggml order, row length first."""

    name: str
    fmt: str
    dims: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dimensions in NumPy order, slowest first."""
        return self.dims[::-1]

    @property
    def elements(self) -> int:
        """Return the number of weights."""
        return prod(self.dims)

    @property
    def rows(self) -> int:
        """Return the number of weight rows of all matrices together, each of ``dims[0]`` weights."""
        return prod(self.dims[1:])

    @property
    def nbytes(self) -> int:
        """Return the stored size in bytes; raise ValueError if a row is not a whole number of the format's blocks."""
        return FORMATS[self.fmt].row_bytes(self.dims[0]) * self.rows


def part_paths(path: str, count: int) -> list[str]:
    """Return the names of the ``count`` files of a split model that as a single file would be ``path``."""
    return [f"{path.removesuffix('.gguf')}-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
