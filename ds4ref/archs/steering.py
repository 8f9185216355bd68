"""Directional steering: the output y of a layer's attention or FFN becomes y - s d (d . y), where d is the layer's
direction (a vector) and s a scale. A positive scale removes the direction from y, a negative one amplifies it.

A file of directions has ds4's format: float32, little endian, (layers, width), without a header; 704,512 bytes for
Flash. Directions are not normalized. Where a layer's direction is all zeros, or the scale is 0, nothing is computed.

    Engine.open("model.gguf", steering=Steering("direction.f32", ffn=0.5))

The block for multi-token prediction is not steered, as it has no direction of its own (ds4 on a GPU uses that of layer
1 for it); this affects how many drafted tokens are accepted, never the text.
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
"""The two halves of a layer: fields of ``Steering`` with their scales -> how messages call them."""
MOST = 100.0
"""Largest absolute value of a scale, as in ds4."""


class Directions:
    """The directions of a model, uploaded to its backend.

    attn, ffn  scales for the outputs of attention and of the FFN
    rows       the directions, float32 (layers, width)
    file       path of their file, "" if they were given as an array
    """

    def __init__(self, wanted: Steering, shape: Any, ops: Any):
        """Raise UsageError for a scale out of range, DataError if the directions do not fit the model's ``shape`` or
        are not finite."""
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
        """Return scales and SHA-256 of the directions: equal for engines that are steered in the same way."""
        return f"attn={self.attn!r} ffn={self.ffn!r} sha256:{digest(self.rows)}"

    def steer(self, ops: Any, half: str, layer: int, y: np.ndarray) -> np.ndarray:
        """Return y (T, width), the output of a layer's attention or FFN (``half``: "attn" or "ffn"), steered."""
        scale = self.attn if half == "attn" else self.ffn
        if not scale or self._placed[layer] is None:
            return y
        steered: np.ndarray = ops.remove_along(y, self._placed[layer], scale)
        return steered


def digest(rows: np.ndarray) -> str:
    """Return the SHA-256 of the bytes that directions have in a file."""
    return hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest()


def read_directions(path: str | os.PathLike[str], shape: Any) -> np.ndarray:
    """Return the directions (layers, width) in a file; raise DataError if they do not fit the model's ``shape``."""
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
    """Return directions as float32 (layers, width); raise DataError if they do not fit the model's ``shape`` or are not
    finite."""
    if rows.shape != (shape.n_layers, shape.dim):
        raise DataError(f"directions are {rows.shape}, this model has {shape.n_layers} layers of width {shape.dim}")
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if wrong.size:
        raise DataError(f"the direction of layer {wrong[0]} is not finite")
    return np.ascontiguousarray(rows, np.float32)


def write_directions(path: str | os.PathLike[str], rows: np.ndarray) -> None:
    """Write directions (layers, width) to a file in ds4's format."""
    with atomic_write(path) as file:
        file.write(np.ascontiguousarray(rows, "<f4").tobytes())
