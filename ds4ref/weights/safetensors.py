"""A hardened, memory-mapped reader for safetensors files, alone or sharded with an index (docs/reference/weights.md).

A file is a little-endian u64 length, a JSON header of that length, and the data. The header maps names to dtype, shape
and ``data_offsets`` [begin, end) into the data. Nothing in it is trusted: length, depth, number of values, products and
offsets are checked before they are used. So any input takes limited time and memory, and results in a tensor table or
in one ``ModelFileError``. As the format's specification demands, the tensors must fill the data completely, without
overlap, gap or trailing bytes.

    with Checkpoint.open("folder") as checkpoint:
        checkpoint.tensors["embed.weight"].shape, checkpoint.config["model_type"]

This module does not interpret the tensors; ``published`` and ``archs/*/published`` do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ..errors import ModelFileError
from ..files import models_near
from .boundedjson import parse, read
from .cursor import quote
from .mapped import MappedFile, touch

MAX_HEADER_BYTES = 32 << 20
"""Maximum size of a header: DeepSeek V4 Flash's 70,000 tensors in a single file would need a third of this."""
MAX_TENSORS = 1 << 17
MAX_ALL_TENSORS = 1 << 19
MAX_RANK = 8
MAX_ELEMENTS = (1 << 63) - 1
MAX_SHARDS = 1 << 10
MAX_NAME_BYTES = 1 << 10
MAX_CONFIG_BYTES = 1 << 20
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits per element, by dtype."""

_FIELDS = {"dtype", "shape", "data_offsets"}
# <name>.safetensors, in the folder itself: no separator and no leading dot.
_SHARD_NAME = re.compile(r"[\w-][\w.\-]*\.safetensors", re.ASCII)


class Stored(NamedTuple):
    """Description of a tensor in a safetensors file.

    dtype   data type, a key of ``BITS``
    shard   index of the file that holds it
    offset  byte offset of the data from the start of that file
    nbytes  size of the data in bytes
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int


def read_header(file: MappedFile, shard: int = 0) -> dict[str, Stored]:
    """Read the header of one file; return its tensors by name, in the order of their data.

    shard: number of this file in its checkpoint, recorded in each tensor. Raise ModelFileError if it is malformed.
    """
    path = file.path
    if file.size < 10:
        raise ModelFileError(path, f"only {file.size} bytes, too short for a safetensors file")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        reason = f"a header of {length} bytes is declared, at most {MAX_HEADER_BYTES} are allowed"
        raise ModelFileError(path, f"not a safetensors file, or too large: {reason}", 0)
    start = 8 + length
    if start > file.size:
        raise ModelFileError(path, f"truncated: the header should have {length} bytes, but the file has {file.size}", 0)
    data = file.read(8, length)
    if data[:1] != b"{":
        raise ModelFileError(path, f"not a safetensors file: its header starts with {quote(data[:8])}", 8)
    header = parse(path, data, values=12 * MAX_TENSORS, offset=8)
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise ModelFileError(path, "__metadata__ is not an object of strings", 8)
    if len(header) > MAX_TENSORS:
        raise ModelFileError(path, f"{len(header)} tensors; the maximum is {MAX_TENSORS}", 8)
    tensors = [_entry(path, name, entry, shard, start) for name, entry in header.items()]
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            problem = "overlaps the one before it" if tensor.offset < end else "leaves a hole before it"
            raise ModelFileError(path, f"tensor {quote(tensor.name)} {problem}", tensor.offset)
        end += tensor.nbytes
    if end != file.size:
        how = "reach past the end of the file" if end > file.size else "do not fill the file"
        raise ModelFileError(path, f"the tensors end at {end} and {how} of {file.size} bytes")
    return {tensor.name: tensor for tensor in sorted(tensors, key=lambda tensor: tensor.offset)}


def _entry(path: str, name: str, entry: Any, shard: int, start: int) -> Stored:
    """Check one tensor of the header by itself; ``start`` is the byte offset of the data section in the file."""

    def refused(problem: str) -> ModelFileError:
        return ModelFileError(path, f"tensor {quote(name)}{problem}", 8)

    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES or not name.isprintable():
        raise refused(" has an unusable name")
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise refused(" has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise refused(f" has unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_count, shape)):
        raise refused(f": a shape is a list of at most {MAX_RANK} sizes")
    elements = 1
    for size in shape:
        elements *= size
        if elements > MAX_ELEMENTS:
            raise refused(" has more than 2^63 elements")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_count, offsets)) or offsets[0] > offsets[1]:
        raise refused(": data_offsets are not two ascending byte positions")
    bits, nbytes = elements * BITS[dtype], offsets[1] - offsets[0]
    if bits % 8 or bits // 8 != nbytes:
        raise refused(f": {elements} of {dtype} do not fit into {nbytes} bytes exactly")
    return Stored(name, dtype, tuple(shape), shard, start + offsets[0], nbytes)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ELEMENTS


class Checkpoint:
    """An open model folder: ``config``, ``tensors`` by name, and ``raw`` for tensor bytes.

    path    path as opened
    folder  folder of config.json and the weight files
    size    bytes of all weight files together
    """

    def __init__(self, path: str, folder: Path):
        """Use ``open`` instead."""
        self.path, self.folder = path, folder
        self.files: list[MappedFile] = []
        self.tensors: dict[str, Stored] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open ``path`` and check all headers: a folder, its index, or a weight file beside its config.json.

        A folder is read through its index if it has one, else it must hold model.safetensors. Raise ModelFileError if
        the checkpoint is incomplete or malformed.
        """
        location = Path(path)
        folder = location if location.is_dir() else location.parent
        checkpoint = cls(os.fspath(path), folder)
        try:
            if location.is_dir():
                index = folder / INDEX
                location = index if index.exists() else folder / SINGLE
                if not location.exists():
                    raise ModelFileError(path, f"this folder has neither {INDEX} nor {SINGLE}{models_near(path)}")
            if location.name.endswith(".json"):
                checkpoint._open_index(location)
            else:
                checkpoint._open_shard(location)
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    def _open_shard(self, path: Path) -> dict[str, Stored]:
        file = MappedFile(path)
        self.files.append(file)
        tensors = read_header(file, len(self.files) - 1)
        twice = next((name for name in tensors if name in self.tensors), None)
        if twice is not None:
            raise ModelFileError(path, f"tensor {quote(twice)} is also in {self.files[self.tensors[twice].shard].path}")
        self.tensors |= tensors
        if len(self.tensors) > MAX_ALL_TENSORS:
            raise ModelFileError(path, f"more than {MAX_ALL_TENSORS} tensors in all files together")
        return tensors

    def _open_index(self, path: Path) -> None:
        """Open every file of the index; refuse files whose tensors are not exactly those that the index lists there."""
        index = read(path, MAX_HEADER_BYTES, values=2 * MAX_ALL_TENSORS)
        places = index.get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
            raise ModelFileError(path, "weight_map is not an object from tensors to files")
        names = sorted(set(places.values()))
        if len(names) > MAX_SHARDS:
            raise ModelFileError(path, f"{len(names)} files; the maximum is {MAX_SHARDS}")
        bad = next((name for name in names if not _SHARD_NAME.fullmatch(name)), None)
        if bad is not None:
            raise ModelFileError(path, f"{quote(bad)} is not the name of a safetensors file in this folder")
        for name in names:
            for tensor in self._open_shard(path.parent / name):
                if places.get(tensor) != name:
                    raise ModelFileError(path, f"does not list {quote(tensor)} in {name}")
        lost = next((tensor for tensor in places if tensor not in self.tensors), None)
        if lost is not None:
            raise ModelFileError(path, f"tensor {quote(lost)} is not in {places[lost]}")

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the contents of config.json; raise ModelFileError if it is missing or malformed."""
        return self.json(CONFIG, MAX_CONFIG_BYTES)

    def json(self, name: str, limit: int, **bounds: int) -> dict[str, Any]:
        """Read the JSON object in the folder's file ``name``, of at most ``limit`` bytes; raise ModelFileError if it is
        missing or malformed. ``bounds`` are passed to ``boundedjson.parse``."""
        return read(self.folder / name, limit, **bounds)

    def has(self, name: str) -> bool:
        """Return whether the folder has a file ``name``."""
        return (self.folder / name).is_file()

    def raw(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (nbytes,), a read-only view of the memory map.

        Raise KeyError for an unknown name, ModelFileError if the file has shrunk.
        """
        tensor = self.tensors[name]
        return self.files[tensor.shard].view(tensor.offset, tensor.nbytes)

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the weights, to load them from disk; yield (bytes covered, sum of those
        read)."""
        for name in self.tensors:
            yield from touch(self.raw(name))

    def close(self) -> None:
        """Close the file descriptors; views stay valid."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
