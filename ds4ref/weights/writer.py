"""Writes GGUF v3 files: streaming, atomically, and as sparse files where tensors are to be zeros.

All tensors are declared first, so the tensor table is complete before any data; the data is then written in the same
order, tensor by tensor, in pieces of any size. The file appears under its name only when all of it is on disk.

    with write_gguf(path, [("general.architecture", "string", "deepseek4")], [TensorSpec("a", "F32", (4,))]) as out:
        out.write("a", np.zeros(4, np.float32))
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ..errors import ModelFileError
from ..files import atomic_write
from .container import (
    ALIGNMENT_KEY,
    ARRAY_ID,
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    STRING_ID,
    TYPE_IDS,
    VERSION,
    TensorSpec,
    align_up,
    require_posix,
)

__all__ = ["TensorSpec", "write_gguf"]

Metadata = Sequence[tuple[str, str, Any]]
Piece = bytes | bytearray | memoryview | np.ndarray


class GGUFTensors:
    """Writes the tensors of a GGUF file, in declared order; ``left``: those not yet written, with their offsets."""

    def __init__(self, out: BinaryIO, places: Iterable[tuple[TensorSpec, int]]):
        self._out, self.left = out, deque(places)

    def write(self, name: str, data: Piece | Iterable[Piece]) -> None:
        """Write the bytes of the next tensor, ``name``: one array or buffer, or an iterable of pieces."""
        spec, start = self._next(name)
        pieces = [data] if isinstance(data, (bytes, bytearray, memoryview, np.ndarray)) else data
        self._out.seek(start)
        written = 0
        for piece in pieces:
            if isinstance(piece, np.ndarray):
                piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            written += self._out.write(piece)
        if written != spec.nbytes:
            raise ValueError(f"{name} takes {spec.nbytes} bytes, got {written}")

    def hole(self, name: str) -> None:
        """Leave the next tensor, ``name``, as zeros, which occupy no disk space on file systems with sparse files."""
        self._next(name)

    def _next(self, name: str) -> tuple[TensorSpec, int]:
        spec, start = self.left.popleft()
        if spec.name != name:
            raise ValueError(f"tensors come in declared order: expected {spec.name}, got {name}")
        return spec, start


@contextmanager
def write_gguf(
    path: str | os.PathLike[str], metadata: Metadata, tensors: Sequence[TensorSpec], alignment: int = DEFAULT_ALIGNMENT
) -> Iterator[GGUFTensors]:
    """Write a GGUF file, which appears when the ``with`` block ends; after an exception in the block there is no file.

    metadata   (key, type, value) in file order; type as in ``container``: "u32", "string", "f32[]", ...
    tensors    every tensor, in file order
    alignment  of the data section and each tensor, in bytes; recorded as ``general.alignment`` if not the default 32

    Raise ValueError for names, types or values that GGUF cannot hold and for tensors that were not fully written,
    ModelFileError if the system cannot write the file.
    """
    require_posix()
    if len({spec.name for spec in tensors}) != len(tensors):
        raise ValueError("two tensors have the same name")
    own = next((spec for spec in tensors if FORMATS[spec.fmt].ggml_id < 0), None)
    if own is not None:
        raise ValueError(f"{own.name}: GGUF has no type {own.fmt}")
    directory, starts, size = laid_out(metadata, tensors, alignment)
    try:
        with atomic_write(path) as out:
            out.write(directory)
            made = GGUFTensors(out, zip(tensors, starts, strict=True))
            yield made
            if made.left:
                raise ValueError(f"tensor {made.left[0][0].name} was never written")
            out.truncate(size)
    except OSError as error:
        raise ModelFileError(path, f"cannot write: {error.strerror or error}") from error


def laid_out(metadata: Metadata, tensors: Sequence[TensorSpec], alignment: int) -> tuple[bytes, list[int], int]:
    """Lay out a file; return the encoded bytes before its data, each tensor's byte offset in the file, and its size."""
    entries = [entry for entry in metadata if entry[0] != ALIGNMENT_KEY]  # copied metadata may have an older alignment
    if alignment != DEFAULT_ALIGNMENT:
        entries.append((ALIGNMENT_KEY, "u32", alignment))
    offsets, position = [], 0
    for spec in tensors:
        offsets.append(position)
        position = align_up(position + spec.nbytes, alignment)
    directory = encode_directory(entries, tensors, offsets)
    start = align_up(len(directory), alignment)
    return directory, [start + offset for offset in offsets], start + position


def encode_directory(metadata: Metadata, tensors: Sequence[TensorSpec], offsets: Sequence[int]) -> bytes:
    """Encode header, metadata and tensor table; ``offsets`` are relative to the start of the data section."""
    keys = [key for key, _, _ in metadata]
    if len(set(keys)) != len(keys):
        raise ValueError(f"metadata key {next(key for key in keys if keys.count(key) > 1)} is given twice")
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, kind, value in metadata:
        parts += [encode_string(key), encode_value(kind, value)]
    for spec, offset in zip(tensors, offsets, strict=True):
        dims = spec.dims
        parts.append(encode_string(spec.name))
        parts.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, FORMATS[spec.fmt].ggml_id, offset))
    return b"".join(parts)


def encode_string(text: str | bytes) -> bytes:
    """Encode a string as GGUF does: u64 length and UTF-8 bytes, no terminator."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def encode_value(kind: str, value: Any) -> bytes:
    """Encode type id and value of one metadata entry, ``kind`` being "u32", "string", "f32[]" and so on.

    Raise ValueError for an unknown type or a value out of range.
    """
    item = kind.removesuffix("[]")
    if item not in TYPE_IDS:
        raise ValueError(f"unknown metadata type {kind!r}: choose from {', '.join(TYPE_IDS)}, with [] for an array")
    item_id = TYPE_IDS[item]
    if kind == item:
        return struct.pack("<I", item_id) + _encode_items(item_id, [value])
    return struct.pack("<IIQ", ARRAY_ID, item_id, len(value)) + _encode_items(item_id, value)


def _encode_items(item_id: int, values: Sequence[Any]) -> bytes:
    if item_id == STRING_ID:
        return b"".join(encode_string(value) for value in values)
    code = SCALARS[item_id][1]
    try:
        return struct.pack(f"<{len(values)}{code[1:]}", *values)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"value does not fit {SCALARS[item_id][0]}: {error}") from None
