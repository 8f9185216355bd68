"""Binding of tensors to weights, what all families do: views of matrices, checked vectors, the backend's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import Matrix

from ..errors import ModelFileError
from ..weights.cursor import quote
from ..weights.source import matrix_rows

if TYPE_CHECKING:
    from ds4ref.kernels.ops import Backend

    from ..weights.source import TensorInfo, TensorSource

VERIFY_BYTES = 64 << 20
"""Total bytes of matrices up to which binding scans them for NaN and infinite scales."""


def matrix(source: TensorSource, info: TensorInfo) -> Matrix:
    """Return a tensor as a matrix, or as one a expert."""
    return Matrix(info.fmt.name, matrix_rows(source, info), info.dims[1], info.dims[0])


def verify_finite(source: TensorSource, info: TensorInfo) -> None:
    """Check numbers or block scales of a tensor; raise ModelFileError for NaN and infinity."""
    bad = info.fmt.first_non_finite(source.raw(info.name))
    if bad is not None:
        kind = "value" if info.fmt.block_elems == 1 else "scale"
        where = info.offset + bad * info.fmt.block_bytes
        raise ModelFileError(source.path, f"tensor {quote(info.name)} holds a NaN or infinite {kind}", where)


def values(source: TensorSource, info: TensorInfo) -> np.ndarray:
    """Return a tensor's float32 values, checked; those of F32 are a view."""
    verify_finite(source, info)
    raw = source.raw(info.name)
    return (raw.view("<f4") if info.fmt.name == "F32" else info.fmt.dequantize(raw)).reshape(info.shape)


def placed(weights: Any, ops: Backend, on_host: tuple[str, ...] = ()) -> Any:
    """Return the weights of a model moved to the memory of ``ops``, each once, but for arrays ``on_host``; a backend
    with its own memory is told their total size first."""
    parts = [weights, *weights.layers]
    matrices = {id(w): w for part in parts for w in vars(part).values() if isinstance(w, Matrix)}
    if hasattr(ops, "prepare"):
        size = getattr(ops, "placed_bytes", lambda w: w.nbytes)
        sizes = [(size(w), bool(w.experts)) for w in matrices.values()]
        ops.prepare(sum(n for n, _ in sizes), sum(n for n, routed in sizes if routed))
    known: dict[int, Any] = {}
    moved = [placed_values({k: v for k, v in vars(part).items() if k not in on_host}, ops, known) for part in parts]
    layers = [replace(part, **fields) for part, fields in zip(parts[1:], moved[1:], strict=True)]
    return replace(weights, **{**moved[0], "layers": layers})


def placed_values(values: Mapping[str, Any], ops: Backend, known: dict[int, Any] | None = None) -> dict[str, Any]:
    """Return weights by attribute, moved to the memory of ``ops``; ``known``: matrices that have been moved, by id."""
    known = {} if known is None else known

    def place(value: Any) -> Any:
        if isinstance(value, Matrix):
            if id(value) not in known:
                known[id(value)] = ops.place(value)
            return known[id(value)]
        return ops.upload(value) if isinstance(value, np.ndarray) else value

    return {name: place(value) for name, value in values.items()}
