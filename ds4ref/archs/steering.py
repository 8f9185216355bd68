"""Directional steering: y becomes y - s d (d . y), y being what a half layer adds to the residual streams, d its
layer's direction and s a scale. A positive scale removes the direction, a negative one amplifies it.

A file of directions is ds4's: float32, little endian, (layers, width), without a header, a row per layer; 704,512 bytes
for Flash. Rows are used as they are, of whatever length. A row of zeros, or a scale of 0, is the op left out.

    Engine.open("model.gguf", steering=Steering("direction.f32", ffn=0.5))

The block for multi-token prediction is not steered, as it has no direction of its own (ds4's GPU path gives it layer
1's): that changes how many drafts are accepted, never the text.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from ..engine_options import Steering
from ..errors import DataError, UsageError
from ..files import atomic_write

HALF_NAMES = {"attn": "attention", "ffn": "the feed-forward half"}
"""The halves of a layer, as fields of ``Steering`` and in words."""
MOST = 100.0
"""Largest scale, either way, as in ds4."""


class Directions:
    """The directions of a model in the memory of its backend; ``attn``, ``ffn`` and ``rows`` (layers, width) as asked
    for, ``file`` the path of their file or ""."""

    def __init__(self, wanted: Steering, shape: Any, ops: Any):
        """Raise UsageError for a scale out of range, DataError for directions of another shape or that are not
        finite."""
        for half in HALF_NAMES:
            if not abs(getattr(wanted, half)) <= MOST:
                raise UsageError(f"the scale {half} of steering is {getattr(wanted, half)}: from -{MOST:g} to {MOST:g}")
        given = wanted.directions
        self.attn, self.ffn = float(wanted.attn), float(wanted.ffn)
        self.file = "" if isinstance(given, np.ndarray) else os.fspath(given)
        self.rows = checked(given, shape) if isinstance(given, np.ndarray) else read_directions(given, shape)
        self._placed = [ops.upload(row) if row.any() else None for row in self.rows] if self.active else []

    @property
    def active(self) -> bool:
        """Return whether any scale is not 0."""
        return bool(self.attn or self.ffn)

    @property
    def identity(self) -> str:
        """Return scales and digest: equal for engines that are steered in the same way."""
        return f"attn={self.attn!r} ffn={self.ffn!r} sha256:{digest(self.rows)}"

    def steer(self, ops: Any, half: str, layer: int, y: np.ndarray) -> np.ndarray:
        """Return what half a layer ("attn" or "ffn") adds, y (T, width), with the layer's direction removed."""
        scale = self.attn if half == "attn" else self.ffn
        if not scale or self._placed[layer] is None:
            return y
        steered: np.ndarray = ops.remove_along(y, self._placed[layer], scale)
        return steered


def digest(rows: np.ndarray) -> str:
    """Return the SHA-256 of directions as they are in a file."""
    return hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest()


def read_directions(path: str | os.PathLike[str], shape: Any) -> np.ndarray:
    """Return the directions (layers, width) in a file; raise DataError if it is not of this shape."""
    wanted = 4 * shape.n_layers * shape.dim
    try:
        size = os.stat(path).st_size
        if size != wanted:
            raise DataError(
                f"{os.fspath(path)}: directions take {shape.n_layers} x {shape.dim} x 4 = {wanted} bytes for this "
                f"model, the file has {size}"
            )
        values = np.fromfile(path, "<f4")
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: cannot read directions: {error.strerror}") from None
    try:
        return checked(values.reshape(shape.n_layers, shape.dim), shape)
    except DataError as error:
        raise DataError(f"{os.fspath(path)}: {error}") from None


def checked(rows: np.ndarray, shape: Any) -> np.ndarray:
    """Return directions as float32 (layers, width); raise DataError for another shape, or if one is not finite."""
    if rows.shape != (shape.n_layers, shape.dim):
        raise DataError(f"directions are {rows.shape}, this model has {shape.n_layers} layers of width {shape.dim}")
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if wrong.size:
        raise DataError(f"the direction of layer {wrong[0]} is not finite")
    return np.ascontiguousarray(rows, np.float32)


def write_directions(path: str | os.PathLike[str], rows: np.ndarray) -> None:
    """Write directions (layers, width) as ds4 reads them."""
    with atomic_write(path) as file:
        file.write(np.ascontiguousarray(rows, "<f4").tobytes())
