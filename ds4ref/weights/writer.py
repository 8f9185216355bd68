"""Writes GGUF v3 files: streaming, atomic, and with holes for zeros where requested.

All tensors are declared first, so the tensor table is complete before any data; the data then arrives in order, tensor
by tensor, in pieces of any size. The file appears under its name only when everything was written and synced.

    with GGUFWriter(path, [("general.architecture", "string", "deepseek4")], [TensorSpec("a", "F32", (4,))]) as out:
        out.write("a", np.zeros(4, np.float32))
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, Self

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

__all__ = ["GGUFWriter", "TensorSpec"]

Metadata = Sequence[tuple[str, str, Any]]
Piece = bytes | bytearray | memoryview | np.ndarray


class GGUFWriter:
    """A GGUF file being written.

    metadata   (key, type, value) in file order; type as in ``container``: "u32", "string", "f32[]", ...
    tensors    every tensor, in file order
    alignment  of the data section and each tensor, in bytes; recorded as ``general.alignment`` if not the default 32

    Leaving the ``with`` block normally calls ``close``, which raises ValueError if a tensor is missing; leaving it by
    an exception calls ``abort``, which removes the file. Raise ModelFileError if the system cannot write.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Metadata,
        tensors: Sequence[TensorSpec],
        alignment: int = DEFAULT_ALIGNMENT,
    ):
        require_posix()
        if alignment < 8 or alignment & (alignment - 1):
            raise ValueError(f"alignment must be a power of two of at least 8, not {alignment}")
        self.path, self._tensors, self._next = path, list(tensors), 0
        if len({spec.name for spec in self._tensors}) != len(self._tensors):
            raise ValueError("two tensors have the same name")
        own = next((spec for spec in self._tensors if FORMATS[spec.fmt].ggml_id < 0), None)
        if own is not None:
            raise ValueError(f"{own.name}: GGUF has no type {own.fmt}")
        directory, self._starts, self.size = laid_out(metadata, self._tensors, alignment)
        self._file = ExitStack()
        self._out: BinaryIO | None = None
        try:
            self._out = self._file.enter_context(atomic_write(path))
            self._out.write(directory)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, name: str, data: Piece | Iterable[Piece]) -> None:
        """Write the bytes of the next tensor, ``name``: one array or buffer, or an iterable of pieces."""
        spec = self._advance(name)
        assert self._out is not None
        pieces = [data] if isinstance(data, (bytes, bytearray, memoryview, np.ndarray)) else data
        written = 0
        try:
            self._out.seek(self._starts[self._next - 1])
            for piece in pieces:
                if isinstance(piece, np.ndarray):
                    piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                written += memoryview(piece).nbytes
                if written > spec.nbytes:
                    break
                self._out.write(piece)
        except OSError as error:
            raise self._failed(error) from error
        if written != spec.nbytes:
            self.abort()
            raise ValueError(f"{name} takes {spec.nbytes} bytes, got {'more' if written > spec.nbytes else written}")

    def hole(self, name: str) -> None:
        """Leave the next tensor, ``name``, as zeros, which occupy no disk space on file systems with sparse files."""
        self._advance(name)

    def close(self) -> None:
        """Complete the file and rename it to its final name; do nothing if already closed or aborted."""
        if self._out is None:
            return
        if self._next < len(self._tensors):
            missing = self._tensors[self._next].name
            self.abort()
            raise ValueError(f"tensor {missing} was never written")
        try:
            self._out.truncate(self.size)
            self._out = None
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def abort(self) -> None:
        """Remove the unfinished file; do nothing after ``close``."""
        self._out = None
        unfinished = InterruptedError()
        self._file.__exit__(type(unfinished), unfinished, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()

    def _advance(self, name: str) -> TensorSpec:
        if self._out is None:
            raise ValueError(f"{self.path} is already closed")
        if self._next == len(self._tensors) or self._tensors[self._next].name != name:
            wanted = self._tensors[self._next].name if self._next < len(self._tensors) else "nothing"
            self.abort()
            raise ValueError(f"tensors come in declared order: expected {wanted}, got {name}")
        self._next += 1
        return self._tensors[self._next - 1]

    def _failed(self, error: OSError) -> ModelFileError:
        self.abort()
        return ModelFileError(self.path, f"cannot write: {error.strerror or error}")


def laid_out(metadata: Metadata, tensors: Sequence[TensorSpec], alignment: int) -> tuple[bytes, list[int], int]:
    """Return the layout of a file: the bytes before its data, each tensor's offset into the data, and the file's
    size."""
    entries = [entry for entry in metadata if entry[0] != ALIGNMENT_KEY]  # that of a file they were copied from
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
    """Encode type id and value of one metadata entry; raise ValueError for an unknown type or a value out of range."""
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
