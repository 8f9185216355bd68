"""Read other engines' intermediates: .npz, .safetensors, folders of raw values, llama.cpp's printouts.

Only headers and manifests are read here; values are loaded from disk on demand. Names are still the other engine's
(``names`` maps them). Files are untrusted: any defect raises DataError with the file's name.

A folder of raw values has a manifest: manifest.json, manifest.jsonl (one tensor a line, which a C program appends as
it goes) or manifest.toml:

    {"ids": [5, 7, ...], "tensors": [{"name": "Qcur", "layer": 3, "shape": [40, 8, 256], "file": "q.f32"}, ...]}

"dtype" defaults to float32, "offset" (bytes) to 0; "order": "ggml" lists dimensions fastest first; "position" is the
first token of a chunk, where a tensor is written in chunks, which are joined in the order of the manifest. Without a
manifest the files must be ds4's graph dumps, PREFIX_NAME-LAYER_posP.bin.
"""

from __future__ import annotations

import json
import math
import re
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.errors import DataError

from .dump import Dump, DumpChunk
from .ops import OPS
from .printed import read_printed

FORMAT = "ds4ref trace 1"
MOST_BYTES = 1 << 36
"""Largest size of one tensor; a shape that needs more is damaged."""

DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1",
}  # fmt: skip
SHORT_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "float": "float32", "half": "float16", "double": "float64",
    "int": "int32", "bool": "bool",
}  # fmt: skip


def read(path: str) -> Dump:
    """Open the dump at ``path``, in any supported form; DataError if it cannot be read."""
    target = Path(path)
    try:
        if target.is_dir():
            dump = _folder(target)
        elif not target.is_file():
            raise DataError(f"cannot read {path}: no such file or folder")
        elif target.suffix == ".npz":
            dump = _npz(target)
        elif target.suffix == ".safetensors":
            dump = _safetensors(target)
        elif target.name.startswith("manifest.") and target.suffix in (".json", ".jsonl", ".toml"):
            dump = _folder(target.parent, target)
        else:
            dump = read_printed(target)
    except DataError:
        raise
    except (OSError, ValueError, MemoryError, OverflowError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {error or type(error).__name__}") from error
    if not dump.tensors:
        raise DataError(f"{path} holds no tensors")
    return dump


# ------------------------------------------------------------------------------------------------- one file


def _npz(path: Path) -> Dump:
    import zipfile

    dump = Dump(str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if m.endswith(".npy")]
            heads = {m.removesuffix(".npy"): _npy_head(archive, m, path) for m in members}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, SyntaxError, struct.error) as error:
        raise DataError(f"{path} is no usable .npz: {error}") from error
    for name, (shape, dtype) in heads.items():
        if name in ("ids", "positions", "rows") and len(shape) == 1:
            integers = _ints(_member(path, name), f"{path}: {name}")
            if name == "ids":
                dump.ids = integers
            else:
                dump.positions = integers
        else:
            dump.add(name, DumpChunk(shape, dtype, lambda name=name: _member(path, name)))  # type: ignore[misc]
    return dump


def _npy_head(archive: Any, member: str, path: Path) -> tuple[tuple[int, ...], str]:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(file)
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: {member} holds {dtype}, not numbers")
    _checked_count(shape, dtype.itemsize, f"{path}: {member}")
    return shape, dtype.name


def _member(path: Path, name: str) -> np.ndarray:
    import zipfile
    import zlib

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: {name} cannot be read: {error}") from error


def _safetensors(path: Path) -> Dump:
    from safetensors import SafetensorError, safe_open

    dump = Dump(str(path))
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            for name in file.keys():
                view = file.get_slice(name)
                kind = SHORT_DTYPES.get(view.get_dtype().lower())
                if kind is None:
                    raise DataError(f"{path}: {name} is {view.get_dtype()}, not numbers")
                load = lambda name=name, kind=kind: _stored_tensor(path, name, kind)  # noqa: E731
                dump.add(name, DumpChunk(tuple(view.get_shape()), kind, load))
    except SafetensorError as error:
        raise DataError(f"{path} is no usable .safetensors: {error}") from error
    if "manifest" in metadata:
        about = _json(metadata["manifest"], f"{path}: its manifest")
        if not isinstance(about, dict):
            raise DataError(f"{path}: its manifest is no JSON object")
        _apply_manifest(dump, about, str(path))
        for entry in about.get("tensors") or []:
            if isinstance(entry, dict) and entry.get("key") in dump.tensors and entry.get("positions") is not None:
                rows = tuple(_ints(entry["positions"], f"{path}: positions"))
                dump.tensors[entry["key"]] = [
                    DumpChunk(p.shape, p.dtype, p.load, positions=rows) for p in dump.tensors[entry["key"]]
                ]
    return dump


def _stored_tensor(path: Path, name: str, kind: str) -> np.ndarray:
    from safetensors import SafetensorError, safe_open

    try:
        if kind != "bfloat16":
            with safe_open(path, "numpy") as file:
                return np.asarray(file.get_tensor(name))
        # NumPy has no bfloat16, so safetensors cannot return it: read its 16 bits where the (checked) header says
        with open(path, "rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            entry = json.loads(raw.read(length))[name]
            begin, end = entry["data_offsets"]
            raw.seek(8 + length + begin)
            return _widened(np.frombuffer(raw.read(end - begin), "<u2").reshape(entry["shape"]))
    except (OSError, SafetensorError, ValueError, KeyError, struct.error) as error:
        raise DataError(f"{path}: {name} cannot be read: {error}") from error


def _widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ------------------------------------------------------------------------------------------------- folders


def _folder(folder: Path, manifest: Path | None = None) -> Dump:
    if manifest is None:
        names = ("manifest.json", "manifest.jsonl", "manifest.toml")
        manifest = next((folder / name for name in names if (folder / name).is_file()), None)
    dump = Dump(str(folder))
    if manifest is None:
        for name, chunk in _graph_dumps(folder):
            dump.add(name, chunk)
        if not dump.tensors:
            raise DataError(f"{folder} has neither a manifest.json nor files like PREFIX_Qcur-3_pos0.bin")
        return dump
    text = manifest.read_text("utf-8")
    if manifest.suffix == ".jsonl":
        lines = [_json(line, f"{manifest} line {n}") for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        about: dict[str, Any] = {"tensors": [line for line in lines if "name" in _mapping(line, manifest)]}
        for line in lines:
            about |= {} if "name" in line else line
    else:
        about = _mapping(_json(text, str(manifest)) if manifest.suffix == ".json" else tomllib.loads(text), manifest)
    _apply_manifest(dump, about, str(manifest))
    entries = about.get("tensors")
    if not isinstance(entries, list):
        raise DataError(f'{manifest}: a list "tensors" is needed')
    ggml = about.get("order") == "ggml"
    for n, entry in enumerate(entries):
        where = f"{manifest}: tensor {n}"
        name, chunk = _entry(folder, _mapping(entry, where), where, ggml)
        dump.add(name, chunk)
    return dump


def _entry(folder: Path, entry: dict[str, Any], where: str, ggml: bool) -> tuple[str, DumpChunk]:
    name, layer, shape = entry.get("name"), entry.get("layer"), entry.get("shape")
    if not isinstance(name, str):
        raise DataError(f"{where} has no name")
    if isinstance(layer, int) and layer >= 0:
        name = f"{name}.{layer}"
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise DataError(f"{where} ({name}): shape must be a list of integers")
    kind = str(entry.get("dtype", "float32")).lower().removeprefix("torch.")
    kind = SHORT_DTYPES.get(kind, kind)
    if kind not in DTYPES:
        raise DataError(f"{where} ({name}): dtype {kind!r} is none of {', '.join(DTYPES)}")
    dims = tuple(shape[::-1] if ggml or entry.get("order") == "ggml" else shape)
    file = _inside(folder, entry.get("file"), f"{where} ({name})")
    offset, first = entry.get("offset", 0), entry.get("position")
    if type(offset) is not int or offset < 0 or (first is not None and type(first) is not int):
        raise DataError(f"{where} ({name}): offset and position must be integers")
    count = _checked_count(dims, np.dtype(DTYPES[kind]).itemsize, f"{where} ({name})")
    size = file.stat().st_size
    if offset + count * np.dtype(DTYPES[kind]).itemsize > size:
        raise DataError(f"{where} ({name}): {file.name} has {size} bytes, shape {list(dims)} as {kind} needs more")
    if offset == 0 and "offset" not in entry and count * np.dtype(DTYPES[kind]).itemsize != size:
        raise DataError(f"{where} ({name}): {file.name} has {size} bytes, which is not shape {list(dims)} as {kind}")
    return name, DumpChunk(dims, kind, lambda: _raw(file, kind, dims, offset), first)


def _raw(file: Path, kind: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    count = math.prod(shape)
    try:
        with open(file, "rb") as raw:
            raw.seek(offset)
            values = np.fromfile(raw, DTYPES[kind], count)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from error
    if len(values) != count:
        raise DataError(f"{file} ends early: {len(values)} of {count} values")
    return _widened(values.reshape(shape)) if kind == "bfloat16" else values.reshape(shape)


def _inside(folder: Path, name: Any, where: str) -> Path:
    """Return the path of file ``name`` of the folder; DataError if it lies outside or does not exist."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise DataError(f"{where}: no file is named")
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise DataError(f"{where}: {name} lies outside the folder")
    if not file.is_file():
        raise DataError(f"{where}: there is no file {name}")
    return file


_GRAPH_DUMP = re.compile(r"(?P<stage>.+?)(?:-(?P<layer>\d+))?_pos(?P<pos>\d+)\.(?P<kind>bin|i32)")


def _graph_dumps(folder: Path) -> Iterator[tuple[str, DumpChunk]]:
    """Yield the flat files PREFIX_NAME-LAYER_posP.bin that ds4's graph writes; P is the first token's position."""
    matches = []
    known = sorted(OPS, key=len, reverse=True)
    for file in folder.iterdir():
        match = _GRAPH_DUMP.fullmatch(file.name)
        stage = match and next((n for n in known if match["stage"] == n or match["stage"].endswith("_" + n)), None)
        if match and stage:
            matches.append((stage, int(match["layer"] or -1), int(match["pos"]), match["kind"], file))
    for stage, layer, position, kind, file in sorted(matches):
        dtype = "int32" if kind == "i32" else "float32"
        count, rest = divmod(file.stat().st_size, 4)
        if rest:
            raise DataError(f"{file}: {file.stat().st_size} bytes are no {dtype} values")
        load = lambda file=file, dtype=dtype, count=count: _raw(file, dtype, (count,), 0)  # noqa: E731
        yield (stage if layer < 0 else f"{stage}.{layer}"), DumpChunk((count,), dtype, load, position)


# ------------------------------------------------------------------------------------------------- checks


def _apply_manifest(dump: Dump, about: dict[str, Any], where: str) -> None:
    dump.about = about
    if about.get("ids") is not None:
        dump.ids = _ints(about["ids"], f"{where}: ids")
    if about.get("positions") is not None:
        dump.positions = _ints(about["positions"], f"{where}: positions")


def _ints(value: Any, where: str) -> list[int]:
    values = np.asarray(value) if isinstance(value, (list, np.ndarray)) else np.zeros((0, 0))
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise DataError(f"{where} must be a list of integers")
    if values.min() < 0 or values.max() >= 1 << 31:
        raise DataError(f"{where} must be 0 or more and fit 31 bits")
    return values.astype(int).tolist()


def _checked_count(shape: tuple[int, ...], itemsize: int, where: str) -> int:
    count = math.prod(shape)
    if count * itemsize > MOST_BYTES:
        raise DataError(f"{where}: shape {list(shape)} cannot be meant")
    return count


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: {error}") from error


def _mapping(value: Any, where: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a table of keys and values is needed")
    return value
