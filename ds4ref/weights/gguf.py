"""A hardened, memory-mapped reader for GGUF v3 files (docs/explanation/model.md 2.1).

Nothing in the file is trusted: every count, length, offset, alignment and product is checked before it is used. So any
input takes limited time and memory, and results in a valid tensor table or in one ``ModelFileError`` with file, offset
and reason. Stricter than ds4 where being lenient has no use: duplicate keys or tensor names, nested arrays, unknown
tensor types, zero dimensions, and overlapping or unaligned tensors are refused.

Opening reads metadata and the tensor table only. Tensor data is mapped on first use and never copied; arrays in the
metadata (a vocabulary of 129,280 strings) are decoded when they are accessed.

    with GGUFFile.open("model.gguf") as file:
        file.metadata["deepseek4.block_count"], file.tensors["output.weight"].shape
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ds4ref.kernels.formats import BY_ID

from ..errors import ModelFileError
from . import source
from .container import (
    ALIGNMENT_KEY,
    ARRAY_ID,
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    STRING_ID,
    VERSION,
    align_up,
    part_paths,
)
from .cursor import Cursor, quote
from .mapped import MappedFile, touch
from .source import TensorInfo

Value = Any  # int, float, bool, str, or a list of one of them

# Limits for the directory (header, metadata and tensor table). The published files need about 8 MiB, 60 keys, 1328
# tensors and 260,000 strings.
MAX_DIRECTORY_BYTES = 64 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 21  # in all arrays together: as many as can be skipped in a fraction of a second
MAX_NAME_BYTES = 1 << 10
MAX_STRING_BYTES = 1 << 24

MAX_ALIGNMENT = 1 << 20
MAX_PARTS = 1024
TOTAL_KEY = "split.tensors.count"
MAX_RANK = 8
MAX_ELEMENTS = (1 << 63) - 1

# The smallest possible entries: a one-byte key with a one-byte value; a tensor of rank 1 with a one-byte name.
_LEAST_KEY_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_LAYOUTS = {type_id: struct.Struct(code) for type_id, (_, code) in SCALARS.items()}
_TENSOR_TAIL = struct.Struct("<IQ")
_DIMS = [struct.Struct(f"<{rank}Q") for rank in range(MAX_RANK + 1)]


@dataclass(frozen=True, slots=True)
class _Array:
    """Type and location of a metadata array that has not been read from the file."""

    item_id: int
    count: int
    offset: int
    nbytes: int


class Metadata(source.Metadata):
    """Metadata values by key. Arrays are read and decoded at every access, so keep the result.

    Booleans come as bool, strings as str, arrays as lists. Raise ModelFileError if an array holds invalid UTF-8, or
    booleans other than 0 and 1, or can no longer be read.
    """

    def __init__(self, file: MappedFile):
        super().__init__()
        self._file = file

    def __getitem__(self, key: str) -> Value:
        return self.first(key, None)

    def count(self, key: str) -> int:
        value = self._entries[key][1]
        return value.count if isinstance(value, _Array) else 1

    def first(self, key: str, count: int | None) -> Value:
        value = self._entries[key][1]
        if not isinstance(value, _Array):
            return value
        return self._decode(key, value, value.count if count is None else min(count, value.count))

    def _decode(self, key: str, array: _Array, count: int) -> list[Any]:
        if array.item_id == STRING_ID:
            data = self._file.read(array.offset, array.nbytes)
            return self._decode_strings(key, array, data, count)
        name, code = SCALARS[array.item_id]
        dtype = np.dtype(code)
        data = self._file.read(array.offset, count * dtype.itemsize)
        values = np.frombuffer(data, dtype).tolist()
        if name != "bool":
            return values
        if any(value > 1 for value in values):
            raise ModelFileError(self._file.path, f"{quote(key)} has a boolean that is neither 0 nor 1", array.offset)
        return [bool(value) for value in values]

    def _decode_strings(self, key: str, array: _Array, data: bytes, count: int) -> list[str]:
        out, position, unpack = [], 0, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                out.append(data[start:position].decode())
        except (UnicodeDecodeError, struct.error):
            reason = f"item {len(out)} of {quote(key)} is not valid UTF-8"
            raise ModelFileError(self._file.path, reason, array.offset + start - 8) from None
        return out


class GGUFFile:
    """An open model: ``metadata``, ``tensors`` by name in file order, and ``raw`` for tensor bytes.

    A model split into several files is presented as one: ``metadata`` is that of the first file, ``size`` and
    ``tensors`` cover all of them, and ``paths`` lists the files in order.
    """

    def __init__(self, file: MappedFile):
        """Take ownership of ``file``; use ``open`` instead."""
        self.path, self.size = file.path, file.size
        self.paths = [file.path]
        self.alignment = DEFAULT_ALIGNMENT
        self.tensors: dict[str, TensorInfo] = {}
        self._files = [file]
        self.metadata = Metadata(file)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open ``path`` and check metadata and tensor table; for a split model, any of its files opens all of them.

        Raise ModelFileError if it is not a well-formed GGUF v3 file, or if a file of a split model is missing or
        belongs to another model; BackendError on Windows.
        """
        file = cls._one(path)
        try:
            number, count = _split(file)
            if number > 0:
                first = _part_path(file.path, number, count, 0)
                file.close()
                return cls.open(first)
            for part in range(1, count):
                file._join(cls._one(_part_path(file.path, 0, count, part), part, count), part, count)
            file._check_total(count)
        except BaseException:
            file.close()
            raise
        return file

    @classmethod
    def _one(cls, path: str | os.PathLike[str], part: int = 0, count: int = 1) -> Self:
        """Open one file by itself: file ``part`` (from 0) of the ``count`` files of a split model."""
        try:
            file = cls(MappedFile(path))
        except ModelFileError as error:
            if part == 0:
                raise
            reason = (
                f"part {part + 1} of {count}: {error.reason}; all parts must lie in one folder under their own names"
            )
            raise ModelFileError(error.path, reason) from None
        try:
            _Parser(file).parse()
        except BaseException:
            file.close()
            raise
        return file

    def _join(self, other: GGUFFile, part: int, count: int) -> None:
        """Add the tensors of another file of a split model, which must be number ``part`` of ``count``; own it."""
        self._files += other._files
        self.paths += other.paths
        self.size += other.size
        found = _split(other)
        if found != (part, count):
            reason = f"is part {found[0] + 1} of {found[1]}, its name says part {part + 1} of {count}: fetch it again"
            raise ModelFileError(other.path, reason)
        for name, info in other.tensors.items():
            if name in self.tensors:
                twin = self.paths[self.tensors[name].part]
                raise ModelFileError(other.path, f"tensor {quote(name)} is in {quote(os.path.basename(twin))}, too")
            self.tensors[name] = info._replace(part=part)

    def _check_total(self, count: int) -> None:
        """Raise ModelFileError if the files of a split model hold another number of tensors than the first one says."""
        kind = self.metadata.type_of(TOTAL_KEY)
        if count > 1 and kind is not None and self.metadata[TOTAL_KEY] != len(self.tensors):
            reason = f"its {count} parts have {len(self.tensors)} tensors, {TOTAL_KEY} is {self.metadata[TOTAL_KEY]}"
            raise ModelFileError(self.path, f"{reason}: a part is of another model")

    def raw(self, name: str) -> np.ndarray:
        """Return the stored bytes of tensor ``name``, uint8 (nbytes,), a read-only view of the memory map.

        Raise KeyError for an unknown name, ModelFileError if the file has shrunk since it was opened.
        """
        info = self.tensors[name]
        return self._files[info.part].view(info.offset, info.nbytes)

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the weights, to load them from disk; yield (bytes covered, sum of those
        read)."""
        for name in self.tensors:
            yield from touch(self.raw(name))

    def close(self) -> None:
        """Close the files. Views from ``raw`` stay valid; the map is released with the last view."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _split(file: GGUFFile) -> tuple[int, int]:
    """Return (number of this file in a split model, from 0; number of its files), (0, 1) for a model in one file."""
    numbers = []
    for key, otherwise in (("split.no", 0), ("split.count", 1)):
        kind = file.metadata.type_of(key)
        numbers.append(otherwise if kind is None else file.metadata[key])
        if type(numbers[-1]) is not int:
            raise ModelFileError(file.path, f"{key} has type {kind}, wanted u16")
    number, count = numbers[0], numbers[1] or 1
    if not 0 <= number < count <= MAX_PARTS:
        raise ModelFileError(file.path, f"is part {number + 1} of {count}, at most {MAX_PARTS} are supported")
    return number, count


def _part_path(path: str, number: int, count: int, wanted: int) -> str:
    """Return the path of file ``wanted`` of a split model of ``count`` files whose file ``number`` is at ``path``."""
    ending = f"-{number + 1:05}-of-{count:05}.gguf"
    if not path.endswith(ending):
        reason = f"is part {number + 1} of {count} of a split model, and must be named PREFIX{ending}"
        raise ModelFileError(path, f"{reason}: the other parts are found by it")
    return part_paths(path.removesuffix(ending), count)[wanted]


class _Parser:
    """Parses the header, metadata and tensor table of a GGUF file into the ``GGUFFile`` it is given."""

    def __init__(self, file: GGUFFile):
        self.file = file
        if file.size <= MAX_DIRECTORY_BYTES:
            limit, why = file.size, f"but the file ends at byte {file.size}"
        else:
            limit, why = MAX_DIRECTORY_BYTES, f"beyond the {MAX_DIRECTORY_BYTES >> 20} MiB a directory may take"
        self.at = Cursor(file._files[0], limit, why)
        self.strings = 0

    def parse(self) -> None:
        n_keys, n_tensors = self._header()
        for _ in range(n_keys):
            self._entry()
        self.file.alignment = self._alignment()
        infos = [self._tensor() for _ in range(n_tensors)]
        self._place(infos)

    def _header(self) -> tuple[int, int]:
        at, size = self.at, self.file.size
        if size < 32:
            raise at.fail(f"only {size} bytes, too short for a GGUF file")
        magic = at.take(4, "magic")
        if magic != MAGIC:
            raise at.fail(f"not a GGUF file: it starts with {quote(magic)}", 0)
        version = at.u32("version")
        if version != VERSION:
            hint = " (big-endian files are not supported)" if version == VERSION << 24 else ""
            raise at.fail(f"GGUF version {version}, only {VERSION} is supported{hint}", 4)
        n_tensors, n_keys = at.u64("tensor count"), at.u64("key count")
        for count, least, most, plural, where in (
            (n_tensors, _LEAST_TENSOR_BYTES, MAX_TENSORS, "tensors", 8),
            (n_keys, _LEAST_KEY_BYTES, MAX_KEYS, "metadata keys", 16),
        ):
            if count > most:
                raise at.fail(f"{count} {plural} declared, at most {most} are allowed", where)
            if count * least > at.remaining():
                raise at.fail(f"{count} {plural} declared, more than fit into the file", where)
        return n_keys, n_tensors

    def _entry(self) -> None:
        at, entries = self.at, self.file.metadata._entries
        start = at.position
        key = at.string("metadata key", MAX_NAME_BYTES)
        if not key:
            raise at.fail("empty metadata key", start)
        if key in entries:
            raise at.fail(f"metadata key {quote(key)} appears twice", start)
        type_at = at.position
        type_id = at.u32(f"type of {quote(key)}")
        if type_id == ARRAY_ID:
            entries[key] = self._array(key)
        elif type_id == STRING_ID:
            entries[key] = "string", at.string(f"value of {quote(key)}", MAX_STRING_BYTES)
        elif type_id in SCALARS:
            name = SCALARS[type_id][0]
            (value,) = at.unpack(_LAYOUTS[type_id], f"value of {quote(key)}")
            if name == "bool":
                if value > 1:
                    raise at.fail(f"{quote(key)} is a boolean of value {value}", at.position - 1)
                value = bool(value)
            entries[key] = name, value
        else:
            raise at.fail(f"{quote(key)} has unknown metadata type {type_id}", type_at)

    def _array(self, key: str) -> tuple[str, _Array]:
        at = self.at
        start = at.position
        item_id, count = at.u32(f"item type of {quote(key)}"), at.u64(f"item count of {quote(key)}")
        offset, label = at.position, f"array {quote(key)}"
        if item_id == STRING_ID:
            if count * 8 > at.remaining():
                raise at.fail(f"{label} declares {count} strings, more than fit into the file", start)
            self.strings += count
            if self.strings > MAX_STRINGS:
                raise at.fail(f"more than {MAX_STRINGS} strings in metadata arrays", start)
            at.skip_strings(count, label)
            name = "string"
        elif item_id in SCALARS:
            at.skip(count * _LAYOUTS[item_id].size, label)
            name = SCALARS[item_id][0]
        elif item_id == ARRAY_ID:
            raise at.fail(f"{label} holds arrays: nested arrays are not supported", start)
        else:
            raise at.fail(f"{label} has unknown item type {item_id}", start)
        return f"{name}[]", _Array(item_id, count, offset, at.position - offset)

    def _alignment(self) -> int:
        metadata = self.file.metadata
        kind = metadata.type_of(ALIGNMENT_KEY)
        if kind is None:
            return DEFAULT_ALIGNMENT
        if kind != "u32":
            raise self.at.fail(f"{ALIGNMENT_KEY} has type {kind}, wanted u32")
        value = metadata[ALIGNMENT_KEY]
        if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self.at.fail(f"{ALIGNMENT_KEY} is {value}, wanted a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def _tensor(self) -> TensorInfo:
        """Read one entry of the tensor table; its offset is still relative to the data section."""
        at = self.at
        start = at.position
        name = at.string("tensor name", MAX_NAME_BYTES)
        if not name:
            raise at.fail("empty tensor name", start)
        rank = at.u32(f"rank of {quote(name)}")
        if not 1 <= rank <= MAX_RANK:
            raise at.fail(f"tensor {quote(name)} has rank {rank}, wanted 1 to {MAX_RANK}", at.position - 4)
        dims_at = at.position
        dims = at.unpack(_DIMS[rank], f"dimensions of {quote(name)}")
        elements = 1
        for dim in dims:
            if dim == 0:
                raise at.fail(f"tensor {quote(name)} has a dimension of 0", dims_at)
            elements *= dim
            if elements > MAX_ELEMENTS:
                raise at.fail(f"tensor {quote(name)} has more than 2^63 elements", dims_at)
        type_at = at.position
        type_id, offset = at.unpack(_TENSOR_TAIL, f"type and offset of {quote(name)}")
        fmt = BY_ID.get(type_id)
        if fmt is None:
            raise at.fail(f"tensor {quote(name)} has unknown type {type_id}", type_at)
        if dims[0] % fmt.block_elems:
            reason = f"rows of {dims[0]} {fmt.name} weights are not whole blocks of {fmt.block_elems}"
            raise at.fail(f"tensor {quote(name)}: {reason}", dims_at)
        if offset % self.file.alignment:
            reason = f"offset {offset} is not a multiple of {self.file.alignment}"
            raise at.fail(f"tensor {quote(name)}: {reason}", type_at + 4)
        return TensorInfo(name, fmt, dims, offset, elements // fmt.block_elems * fmt.block_bytes)

    def _place(self, infos: list[TensorInfo]) -> None:
        """Make offsets absolute and check that tensors lie in the file, do not overlap and have unique names."""
        file = self.file
        data_start = align_up(self.at.position, file.alignment)
        tensors = file.tensors
        for info in infos:
            offset = data_start + info.offset
            if offset + info.nbytes > file.size:
                reason = f"{info.nbytes} bytes at {offset} reach past the end of the file"
                raise ModelFileError(file.path, f"tensor {quote(info.name)}: {reason}", file.size)
            if info.name in tensors:
                raise ModelFileError(file.path, f"tensor {quote(info.name)} appears twice")
            tensors[info.name] = info._replace(offset=offset)
        end, last = data_start, ""
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if info.offset < end:
                raise ModelFileError(file.path, f"tensors {quote(last)} and {quote(info.name)} overlap", info.offset)
            end, last = info.offset + info.nbytes, info.name
