"""Safetensors byte by byte, and a small published model, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.safetensors import BITS

from .modelfile import SMALL, write_model


def entry(dtype: str = "F32", shape: Any = (2,), start: int = 0, end: int | None = None) -> dict[str, Any]:
    """A tensor of a header; its end follows from dtype and shape."""
    if end is None:
        elements = 1
        for size in shape:
            elements *= size
        end = start + elements * BITS[dtype] // 8
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def container(header: Any, data: int = 8, length: int | None = None, tail: bytes = b"") -> bytes:
    """A file: ``header`` as JSON, or the bytes in its place; ``length`` may lie about them."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data) + tail


def write_small(folder: Path, shard_bytes: int = 1 << 30) -> Path:
    """``SMALL`` with random weights as DeepSeek would publish it, in ``folder``."""
    with open_source(write_model(folder.parent / f"{folder.name}.gguf", metadata=SMALL.metadata())) as source:
        write_checkpoint(source, folder, shard_bytes)
    return folder


def edit_json(path: Path, changes: Mapping[str, Any]) -> None:
    """Other values of some keys; None removes one."""
    found = json.loads(path.read_text())
    for key, value in changes.items():
        found[key] = value
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
