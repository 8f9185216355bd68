"""Writes safetensors: a folder of shards with its index, each file atomically.

Each tensor is computed only when it is written, so that memory holds one tensor instead of the whole model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from ..files import atomic_write
from .safetensors import BITS, INDEX, SINGLE

SHARD_BYTES = 4 << 30


class PlannedTensor(NamedTuple):
    """A tensor to be written.

    dtype  safetensors data type, a key of ``safetensors.BITS``
    make   returns the tensor's data, an array of any dtype with the right bytes; None: zeros, which are left as a hole
           in the file and take no disk space
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray] | None

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return prod(self.shape) * BITS[self.dtype] // 8


def write_file(path: str | os.PathLike[str], tensors: Sequence[PlannedTensor]) -> None:
    """Write ``tensors`` to one safetensors file.

    Raise ValueError if a tensor's data has another size than planned, DataError if the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for plan in tensors:
        entry = {"dtype": plan.dtype, "shape": list(plan.shape), "data_offsets": [end, end + plan.nbytes]}
        header[plan.name], end = entry, end + plan.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with atomic_write(path) as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for plan in tensors:
                if plan.make is None:
                    out.seek(plan.nbytes, os.SEEK_CUR)
                    continue
                data = np.ascontiguousarray(plan.make())
                if data.nbytes != plan.nbytes:
                    raise ValueError(f"{plan.name}: {data.nbytes} bytes, not the {plan.nbytes} of its plan")
                out.write(data.reshape(-1).view(np.uint8).data)
            out.truncate()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def write_folder(
    folder: str | os.PathLike[str], tensors: Sequence[PlannedTensor], shard_bytes: int = SHARD_BYTES
) -> None:
    """Write ``tensors`` to files in ``folder`` of at most ``shard_bytes`` of data each, with an index if there are
    several. A tensor larger than that has a file of its own."""
    shards = list(_shards(tensors, shard_bytes))
    if len(shards) == 1:
        write_file(Path(folder) / SINGLE, shards[0])
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(Path(folder) / name, shard)
        places.update((plan.name, name) for plan in shard)
    total = sum(plan.nbytes for plan in tensors)
    write_json(Path(folder) / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a JSON file atomically; raise DataError if it cannot be written."""
    try:
        with atomic_write(path) as out:
            out.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def _shards(tensors: Sequence[PlannedTensor], shard_bytes: int) -> Iterator[list[PlannedTensor]]:
    shard: list[PlannedTensor] = []
    size = 0
    for plan in tensors:
        if shard and size + plan.nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(plan)
        size += plan.nbytes
    yield shard
