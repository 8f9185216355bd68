"""Read other engines' intermediates: .npz, .safetensors, folders of raw values.

Tensors have the other engine's names here (``names`` maps them to ours), and their values are loaded on demand, except
for .npz. Files are untrusted: any defect raises DataError with the file's name.

A folder of raw values has a ``manifest.jsonl`` with a line per tensor, to which the dumping program appends:

    {"name": "Qcur", "layer": 3, "shape": [40, 8, 256], "file": "q.f32"}

"dtype" defaults to float32, "offset" (bytes) to 0; "order": "ggml" means that the shape lists the fastest dimension
first. A tensor may be written in chunks of tokens, which are joined in the order of the manifest; "position" is a
chunk's first token. A line without a name holds "ids", "positions" or "order" of the whole dump. Without a manifest the
files must be ds4's graph dumps, PREFIX_NAME-LAYER_posP.bin.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ds4ref.errors import DataError, ModelFileError
from ds4ref.weights.mapped import MappedFile
from ds4ref.weights.safetensors import read_header

from ..observation import MAX_ID
from ..reading import Ids, read_npz
from .ops import OPS

FORMAT = "ds4ref trace 1"
MANIFEST = "manifest.jsonl"
DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1",
}  # fmt: skip
SHORT_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class DumpChunk:
    """A tensor of a dump, or the part of it for one chunk of consecutive tokens.

    load   function that reads the values
    first  position of the chunk's first token; None if the file does not give it
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]
    first: int | None = None


@dataclass
class Dump:
    """All tensors of a file or folder under the engine's own names.

    path       the file or folder
    tensors    chunks by name, in the order in which they were written
    ids        token ids of the pass, if the file has them
    positions  token positions of the tensors' rows, if the file has them
    about      the file's manifest, if it has one
    """

    path: str
    tensors: dict[str, list[DumpChunk]] = field(default_factory=dict)
    ids: list[int] | None = None
    positions: list[int] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, chunk: DumpChunk) -> None:
        """Append one more chunk of tensor ``name``."""
        self.tensors.setdefault(name, []).append(chunk)


class _Entry(msgspec.Struct):
    """A line of a manifest."""

    name: str
    shape: list[int]
    file: str
    layer: int = -1
    dtype: str = "float32"
    offset: int | None = None
    position: int | None = None
    order: str = ""


def read(path: str) -> Dump:
    """Open the dump at ``path``, in any supported form; DataError if it cannot be read."""
    target = Path(path)
    try:
        if target.is_dir() or target.name == MANIFEST:
            dump = _folder(target if target.is_dir() else target.parent)
        elif target.suffix == ".npz":
            dump = _npz(path)
        elif target.suffix == ".safetensors":
            dump = _safetensors(path)
        else:
            raise DataError(f"{path}: a dump is .npz, .safetensors or a folder")
    except (OSError, ValueError, MemoryError, OverflowError, RecursionError, ModelFileError) as error:
        raise DataError(f"cannot read {path}: {error or type(error).__name__}") from error
    if not dump.tensors:
        raise DataError(f"{path} holds no tensors")
    return dump


def _npz(path: str) -> Dump:
    """Read an .npz: the arrays "ids", "positions" and "rows" are token ids and positions, all others tensors."""
    dump = Dump(path)
    for name, values in read_npz(path).items():
        if values.dtype.kind not in "fiub":
            raise DataError(f"{path}: {name} holds {values.dtype}, not numbers")
        if name == "ids" and values.ndim == 1:
            dump.ids = _ints(values, f"{path}: ids")
        elif name in ("positions", "rows") and values.ndim == 1:
            dump.positions = _ints(values, f"{path}: {name}")
        else:
            dump.add(name, DumpChunk(values.shape, values.dtype.name, lambda values=values: values))  # type: ignore[misc]
    return dump


def _safetensors(path: str) -> Dump:
    """Open a .safetensors file, with the manifest in its metadata if there is one."""
    dump, file = Dump(path), MappedFile(path)
    stored = read_header(file)
    header = json.loads(file.read(8, int.from_bytes(file.read(0, 8), "little")))
    for tensor in stored.values():
        kind = SHORT_DTYPES.get(tensor.dtype.lower())
        if kind is None:
            raise DataError(f"{path}: {tensor.name} is {tensor.dtype}, not numbers of a type that is known")
        load = partial(_values, path, kind, tensor.shape, tensor.offset)
        dump.add(tensor.name, DumpChunk(tensor.shape, kind, load))
    about = json.loads(header.get("__metadata__", {}).get("manifest", "{}"))
    if not isinstance(about, dict):
        raise DataError(f"{path}: its manifest is no JSON object")
    _apply(dump, about, path)
    return dump


def _folder(folder: Path) -> Dump:
    """Open a folder of raw values: with a manifest, else ds4's graph dumps."""
    dump, manifest = Dump(str(folder)), folder / MANIFEST
    if not manifest.is_file():
        _graph_dumps(folder, dump)
        if not dump.tensors:
            raise DataError(f"{folder} has neither a {MANIFEST} nor files like PREFIX_Qcur-3_pos0.bin")
        return dump
    lines = [json.loads(line) for line in manifest.read_text("utf-8").splitlines() if line.strip()]
    if not all(isinstance(line, dict) for line in lines):
        raise DataError(f"{manifest}: every line must be a JSON object")
    about = {key: value for line in lines if "name" not in line for key, value in line.items()}
    _apply(dump, about, str(manifest))
    for n, line in enumerate(line for line in lines if "name" in line):
        where = f"{manifest}: tensor {n}"
        try:
            entry = msgspec.convert(line, _Entry)
        except msgspec.ValidationError as error:
            raise DataError(f"{where}: {error}") from None
        _add_entry(dump, folder, entry, where, "ggml" in (entry.order, about.get("order")))
    return dump


def _add_entry(dump: Dump, folder: Path, entry: _Entry, where: str, ggml: bool) -> None:
    """Add the tensor, or chunk of one, that a line of the manifest describes; DataError if file and shape disagree.

    where  place of the line, for messages
    ggml   whether the shape lists the fastest dimension first
    """
    name = entry.name if entry.layer < 0 else f"{entry.name}.{entry.layer}"
    kind = entry.dtype.lower().removeprefix("torch.")
    kind = SHORT_DTYPES.get(kind, kind)
    if kind not in DTYPES:
        raise DataError(f"{where} ({name}): dtype {kind!r} is none of {', '.join(DTYPES)}")
    shape = tuple(entry.shape[::-1] if ggml else entry.shape)
    file, offset = (folder / entry.file).resolve(), entry.offset or 0
    if not file.is_relative_to(folder.resolve()) or not file.is_file():
        raise DataError(f"{where} ({name}): {entry.file} is no file of the folder")
    size, needed = file.stat().st_size, math.prod(shape) * np.dtype(DTYPES[kind]).itemsize
    exact = entry.offset is None
    if min((*shape, offset)) < 0 or offset + needed > size or (exact and needed != size):
        raise DataError(f"{where} ({name}): {file.name} has {size} bytes, which is not shape {list(shape)} as {kind}")
    dump.add(name, DumpChunk(shape, kind, partial(_values, str(file), kind, shape, offset), entry.position))


_GRAPH_DUMP = re.compile(r"(?P<stage>.+?)(?:-(?P<layer>\d+))?_pos(?P<pos>\d+)\.(?P<kind>bin|i32)")


def _graph_dumps(folder: Path, dump: Dump) -> None:
    """Add the flat files PREFIX_NAME-LAYER_posP.bin that ds4's graph writes; P is the first token's position."""
    matches = []
    known = sorted(OPS, key=len, reverse=True)
    for file in folder.iterdir():
        match = _GRAPH_DUMP.fullmatch(file.name)
        stage = match and next((n for n in known if match["stage"] == n or match["stage"].endswith("_" + n)), None)
        if match and stage:
            matches.append((stage, int(match["layer"] or -1), int(match["pos"]), match["kind"], file))
    for stage, layer, position, kind, file in sorted(matches):
        dtype = "int32" if kind == "i32" else "float32"
        shape = (file.stat().st_size // 4,)
        chunk = DumpChunk(shape, dtype, partial(_values, str(file), dtype, shape, 0), position)
        dump.add(stage if layer < 0 else f"{stage}.{layer}", chunk)


def _values(path: str, kind: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    """Read an array of type ``kind`` at ``offset`` bytes; bfloat16 becomes float32."""
    count = math.prod(shape)
    try:
        values = np.fromfile(path, DTYPES[kind], count, offset=offset)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(values) != count:
        raise DataError(f"{path} ends early: {len(values)} of {count} values")
    if kind == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(shape)


def _apply(dump: Dump, about: dict[str, Any], where: str) -> None:
    dump.about = about
    if about.get("ids") is not None:
        dump.ids = _ints(about["ids"], f"{where}: ids")
    if about.get("positions") is not None:
        dump.positions = _ints(about["positions"], f"{where}: positions")


def _ints(value: Any, where: str) -> list[int]:
    try:
        return msgspec.convert(value.tolist() if isinstance(value, np.ndarray) else value, Ids)
    except msgspec.ValidationError:
        raise DataError(f"{where} must be a list of integers from 0 to {MAX_ID}") from None
