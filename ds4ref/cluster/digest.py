"""A digest of the tensors of some layers, which tells another file without reading all of this one.

Of every tensor: name, format, dimensions, and its bytes, of those above 64 KiB four pieces of 4 KiB: a file that was
quantized or trained otherwise differs everywhere. One with a few bytes changed elsewhere does not show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ..weights.source import TensorSource

WHOLE, PIECE, PIECES = 64 << 10, 4 << 10, 4


def tensors_digest(source: TensorSource, names: Iterable[str], further: str = "") -> str:
    """Return "sha256:..." of the text ``further`` and the tensors ``names`` that the file has."""
    digest = hashlib.sha256(further.encode())
    for name in names:
        info = source.tensors.get(name)
        if info is None:
            continue
        digest.update(f"{name} {info.fmt.name} {list(info.dims)}\n".encode())
        data = source.raw(name)
        if data.size <= WHOLE:
            digest.update(data)
            continue
        step = (data.size - PIECE) // (PIECES - 1)
        for number in range(PIECES):
            digest.update(data[number * step : number * step + PIECE])
    return f"sha256:{digest.hexdigest()}"
