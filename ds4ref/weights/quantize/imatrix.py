"""Importance matrices: the mean square of the inputs to each column of a matrix, measured on a calibration text.

The quantizer weights rounding errors by them. Two file formats are read and written. The older ``.dat`` (little endian)
has i32 number of entries; for each entry i32 length and name, i32 calls, i32 count and that many float32 values, which
are divided by calls unless that is 0; and optionally i32 chunks, i32 length and name of the data set. llama.cpp's GGUF
has ``NAME.in_sum2`` (sums of squares, one row per expert) and ``NAME.counts``. A stack of experts has one vector per
expert, in order.

The number of inputs of each expert is kept if the format records it. An expert without inputs gets the mean over the
others; one with few inputs is pulled towards that mean, as if by ``PRIOR`` additional tokens. For experts without
inputs ds4 writes 1.0 everywhere, on another scale than measured values; such vectors are treated as unmeasured. Nothing
in a file is trusted: sizes are checked against the file's length before anything is allocated.

    table = read_imatrix("importance.dat")
    table.importance("blk.3.ffn_down_exps.weight", 2048, 256, expert=7)      float32 (2048,)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ...errors import DataError, ModelFileError
from ...files import atomic_write
from ..container import MAGIC, TensorSpec
from ..cursor import Cursor, quote
from ..gguf import GGUFFile
from ..mapped import MappedFile
from ..writer import write_gguf

MAX_NAME_BYTES = 4096
MAX_ENTRIES = 1 << 20
MAX_FILE_BYTES = 8 << 30
PRIOR = 4.0
"""Weight of the mean over all experts, in tokens, when it is averaged with the mean of an expert with few inputs."""

_TRAILER_MOST = 1 << 16
_SUMS, _COUNTS = ".in_sum2", ".counts"
_I32, _TWO = struct.Struct("<i"), struct.Struct("<ii")


@dataclass
class TensorImportance:
    """The measured importance of one matrix, or of a stack of matrices with one vector each.

    means   float32 (vectors, cols): mean squares of the inputs
    counts  float64 (vectors,): number of inputs, 0 if unmeasured; None: the file does not record counts
    """

    means: np.ndarray
    counts: np.ndarray | None = None

    def usable(self) -> np.ndarray:
        """Return the vectors for the quantizer, float32 (vectors, cols): those of unmeasured experts are replaced by
        the mean over the others, those of rarely used experts moved towards it."""
        met = np.ones(len(self.means), bool) if self.counts is None else self.counts > 0
        if self.counts is None and len(self.means) > 1:
            met = ~(self.means == 1.0).all(axis=1)
        if not met.any():
            return np.ones_like(self.means)
        centre = self.means[met].mean(axis=0, dtype=np.float64)
        if self.counts is None:
            mixed = np.where(met[:, None], self.means, centre)
        else:
            trust = (self.counts / (self.counts + PRIOR))[:, None] if len(self.means) > 1 else 1.0
            mixed = trust * self.means.astype(np.float64) + (1 - trust) * centre
        return mixed.astype(np.float32)

    @property
    def unmet(self) -> int:
        """Return the number of vectors without any measurement, those of experts that were never used."""
        if self.counts is not None:
            return int((self.counts <= 0).sum())
        return int((self.means == 1.0).all(axis=1).sum()) if len(self.means) > 1 else 0


@dataclass
class Imatrix:
    """The contents of an importance file.

    An entry with a single row may hold the vectors of all experts of a stack, one after the other: only the tensor's
    own dimensions tell.

    entries   importance by tensor name
    datasets  names of the calibration data
    chunks    number of chunks of that data
    path      the file, for error messages
    """

    entries: dict[str, TensorImportance] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    chunks: int = 0
    path: str = ""
    _used: dict[tuple[str, int], np.ndarray] = field(default_factory=dict, repr=False)

    def importance(self, name: str, cols: int, experts: int = 0, expert: int | None = None) -> np.ndarray | None:
        """Return the importance vector float32 (cols,) of a matrix, or of one expert; None if the file has none.

        name     name of the tensor
        cols     number of columns of the matrix
        experts  number of matrices in the tensor, if it is a stack of experts
        expert   which of them; None for a plain matrix

        Entries ``NAME.expert.E`` and ``NAME.expert_E`` take precedence over ``NAME``. Raise DataError for an entry of
        another length.
        """
        if expert is not None:
            for expert_name in (f"{name}.expert.{expert}", f"{name}.expert_{expert}"):
                if expert_name in self.entries:
                    return self._vectors(expert_name, cols, 1)[0]
        if name not in self.entries:
            return None
        vectors = self._vectors(name, cols, max(1, experts))
        return vectors[0] if len(vectors) == 1 or expert is None else vectors[expert]

    def _vectors(self, name: str, cols: int, experts: int) -> np.ndarray:
        if (name, cols) not in self._used:
            means, counts = self.entries[name].means, self.entries[name].counts
            if means.size not in (cols, cols * experts):
                wanted = f"{cols}" if experts == 1 else f"{cols} or {cols * experts}"
                raise DataError(f"{self.path}: {quote(name)} has {means.size} values, wanted {wanted}")
            means = means.reshape(-1, cols)
            if counts is not None and len(counts) != len(means):
                raise DataError(f"{self.path}: {quote(name)} has {len(counts)} counts for {len(means)} rows")
            self._used[name, cols] = TensorImportance(means, counts).usable()
        return self._used[name, cols]


# --- reading


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read an importance file of either format, recognised by its first bytes; raise DataError if it is unusable."""
    path = os.fspath(path)
    try:
        with closing(MappedFile(path)) as file:
            if file.size > MAX_FILE_BYTES:
                raise DataError(f"{path}: {file.size} bytes, too large for an importance matrix")
            table = _read_gguf(path) if file.read(0, min(4, file.size)) == MAGIC else _read_dat(file)
    except ModelFileError as error:
        raise DataError(str(error)) from None
    if not table.entries:
        raise DataError(f"{path}: no importance matrix entries")
    return table


def _read_dat(file: MappedFile) -> Imatrix:
    at = Cursor(file, file.size, f"but the file ends at byte {file.size}")
    table = Imatrix(path=at.path)
    (count,) = at.unpack(_I32, "the number of entries")
    if not 0 < count <= min(MAX_ENTRIES, at.remaining() // 13):
        raise at.fail(f"{count} entries cannot be in {at.limit} bytes: no importance file, or a damaged one", 0)
    for number in range(count):
        name = _text(at, f"name of entry {number}", MAX_NAME_BYTES, 1)
        calls, values = at.unpack(_TWO, f"the calls and the size of {quote(name)}")
        if calls < 0 or values <= 0:
            raise at.fail(f"{quote(name)} has {calls} calls and {values} values")
        data = np.frombuffer(at.take(4 * values, quote(name)), "<f4")
        if name in table.entries:
            raise at.fail(f"{quote(name)} appears twice")
        means = _checked(at.path, name, data.astype(np.float32)) / np.float32(max(calls, 1))
        table.entries[name] = TensorImportance(means.reshape(1, -1))
    if at.remaining() >= 8:
        table.chunks = max(0, at.unpack(_I32, "the number of chunks")[0])
        if dataset := _text(at, "data set", _TRAILER_MOST, 0):
            table.datasets.append(dataset)
    if at.remaining():
        raise at.fail(f"{at.remaining()} bytes follow the last entry")
    return table


def _text(at: Cursor, label: str, most: int, least: int) -> str:
    (length,) = at.unpack(_I32, f"the length of the {label}")
    if not least <= length <= most:
        raise at.fail(f"the {label} has {length} bytes")
    try:
        return at.take(length, f"the {label}").decode()
    except UnicodeDecodeError:
        raise at.fail(f"the {label} is not valid UTF-8") from None


def _checked(path: str, name: str, values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise DataError(f"{path}: {quote(name)} holds a value that is not finite")
    if (values < 0).any():
        raise DataError(f"{path}: {quote(name)} holds a mean square below zero")
    return values


def _read_gguf(path: str) -> Imatrix:
    with GGUFFile.open(path) as file:
        meta = file.metadata
        kind = meta["general.type"] if meta.type_of("general.type") == "string" else None
        if kind != "imatrix":
            raise DataError(
                f"{path}: is a GGUF file, but not an importance matrix (general.type is {quote(str(kind))})"
            )
        table = Imatrix(path=path)
        if meta.type_of("imatrix.datasets") == "string[]":
            table.datasets = list(meta.first("imatrix.datasets", 64))
        if meta.type_of("imatrix.chunk_count") == "u32":
            table.chunks = meta["imatrix.chunk_count"]
        for info in file.tensors.values():
            if not info.name.endswith(_SUMS):
                continue
            name = info.name.removesuffix(_SUMS)
            tally = file.tensors.get(name + _COUNTS)
            if tally is None:
                raise DataError(f"{path}: {quote(name)} has sums, but no counts")
            if info.fmt.name != "F32" or tally.fmt.name != "F32":
                raise DataError(f"{path}: {quote(name)} is stored as {info.fmt.name} and {tally.fmt.name}, wanted F32")
            sums = file.raw(info.name).view("<f4").reshape(-1, info.dims[0])
            counts = file.raw(tally.name).view("<f4").astype(np.float64)
            if len(counts) != len(sums):
                raise DataError(f"{path}: {quote(name)} has {len(counts)} counts for {len(sums)} rows")
            if not np.isfinite(counts).all() or (counts < 0).any():
                raise DataError(f"{path}: {quote(name)} has an invalid count")
            divisor = np.where(counts > 0, counts, 1)[:, None]
            with np.errstate(over="ignore", invalid="ignore"):
                means = (sums.astype(np.float64) / divisor).astype(np.float32)
            table.entries[name] = TensorImportance(_checked(path, name, means), counts)
        return table


# --- writing


def write_imatrix(path: str | os.PathLike[str], table: Imatrix) -> None:
    """Write ``table``, as GGUF if the name ends in ``.gguf``, else as ``.dat``; raise DataError if that fails.

    The older format has no counts, so vectors that were not measured are written as the mean of the others.
    """
    path = os.fspath(path)
    if not table.entries:
        raise DataError(f"no tokens were processed: {path} not written")
    try:
        if path.endswith(".gguf"):
            _write_gguf(path, table)
        else:
            with atomic_write(path) as out:
                out.writelines(_dat(table))
    except ModelFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def _dat(table: Imatrix) -> Iterator[bytes]:
    yield _I32.pack(len(table.entries))
    for name, entry in table.entries.items():
        encoded = name.encode()
        means = _filled(entry)
        yield _I32.pack(len(encoded)) + encoded + struct.pack("<ii", 1, means.size) + means.astype("<f4").tobytes()
    dataset = ", ".join(table.datasets).encode()[:_TRAILER_MOST]
    yield struct.pack("<ii", table.chunks, len(dataset)) + dataset


def _filled(entry: TensorImportance) -> np.ndarray:
    """Return the vectors of an entry, those never measured replaced by the mean of the others."""
    if entry.counts is None or not 0 < entry.unmet < len(entry.means):
        return entry.means
    met = entry.counts > 0
    return np.where(met[:, None], entry.means, entry.means[met].mean(axis=0, dtype=np.float64)).astype(np.float32)


def _write_gguf(path: str, table: Imatrix) -> None:
    metadata = [
        ("general.type", "string", "imatrix"),
        ("imatrix.datasets", "string[]", table.datasets),
        ("imatrix.chunk_count", "u32", table.chunks),
        ("imatrix.chunk_size", "u32", 1),
    ]
    specs, data = [], []
    for name, entry in table.entries.items():
        counts = np.ones(len(entry.means)) if entry.counts is None else entry.counts
        specs.append(TensorSpec(name + _SUMS, "F32", (entry.means.shape[1], len(entry.means))))
        data.append((entry.means.astype(np.float64) * counts[:, None]).astype("<f4"))
        specs.append(TensorSpec(name + _COUNTS, "F32", (1, len(counts))))
        data.append(counts.astype("<f4"))
    with write_gguf(path, metadata, specs) as out:
        for spec, values in zip(specs, data, strict=True):
            out.write(spec.name, values)
