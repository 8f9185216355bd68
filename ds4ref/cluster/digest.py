"""A digest of the tensors of some layers, by which two model files can be compared without reading all of them.

It covers the name, format and dimensions of every tensor, and its bytes; of tensors above 64 KiB only four pieces of
4 KiB, and of tensors that a published folder has in many pieces, such as experts, only four of these. A file that was
quantized or trained differently differs everywhere, so this is enough; a few bytes changed elsewhere are not detected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from ..weights.source import TensorSource

WHOLE, PIECE, PIECES = 64 << 10, 4 << 10, 4


def tensors_digest(source: TensorSource, names: Iterable[str], further: str = "") -> str:
    """Return a digest, "sha256:...", of the tensors ``names`` and the text ``further``; skip missing tensors."""
    digest = hashlib.sha256(further.encode())
    for name in names:
        info = source.tensors.get(name)
        if info is None:
            continue
        digest.update(f"{name} {info.fmt.name} {list(info.dims)}\n".encode())
        for data in _stored(source, name):
            if data.size <= WHOLE:
                digest.update(data)
                continue
            step = (data.size - PIECE) // (PIECES - 1)
            for number in range(PIECES):
                digest.update(data[number * step : number * step + PIECE])
    return f"sha256:{digest.hexdigest()}"


def _stored(source: TensorSource, name: str) -> list[np.ndarray]:
    """Return the bytes of a tensor as they are in the file, or in pieces as they are in a published folder: without
    conversion, which would read all of them."""
    stored = getattr(source, "stored", None)
    pieces = [source.raw(name)] if stored is None else stored(name)
    return [pieces[at] for at in sorted({round(at) for at in np.linspace(0, len(pieces) - 1, PIECES)})]
