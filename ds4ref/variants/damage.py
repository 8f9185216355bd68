"""Weight tensors damaged as faulty conversions leave them: rearranged, rescaled, negated.

for says, other in rearranged(w.attn_q_b): ...          says: "halves of its rows swapped"; other: the matrix
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.matrix import Matrix

from ..archs.deepseek4.weights import LayerWeights, Weights
from .faults import Fault, _op


def attribute(tensor: str) -> str:
    """Return the field of Weights or LayerWeights that holds ``tensor``, a name without "blk.N." and ".weight"."""
    return tensor.replace(".", "_")


def tensor_name(attr: str, layer: int) -> str:
    """Return a tensor's name in the file by field and layer; ``layer`` is negative for tensors of the whole model."""
    if layer < 0:
        return f"{attr}.weight"
    stem = attr.replace("indexer_attn_q_b", "indexer.attn_q_b").replace("indexer_proj", "indexer.proj")
    return f"blk.{layer}.{stem}.{'bias' if attr == 'exp_probs_b' else 'weight'}"


def with_tensor(weights: LayerWeights | Weights, attr: str, value: Any) -> LayerWeights | Weights:
    """Return a copy of the weights with one field replaced."""
    return dataclasses.replace(weights, **{attr: value})


def alike(own: Any, other: Any) -> bool:
    """Return whether two tensors could be confused: same kind, shape and format."""
    if type(own) is not type(other):
        return False
    if isinstance(own, np.ndarray):
        return own.shape == other.shape and own.dtype == other.dtype
    return isinstance(own, Matrix) and (own.fmt, own.data.shape, own.cols) == (other.fmt, other.data.shape, other.cols)


def rearranged(own: Any) -> Iterator[tuple[str, Any]]:
    """Yield (description, tensor) for typical conversion errors of a Matrix or a float32 array."""
    if isinstance(own, np.ndarray):
        if own.dtype.kind == "f":
            yield from ((says, np.ascontiguousarray(other)) for says, other in _moved(own, -1, "values"))
            yield "all zero", np.zeros_like(own)
            yield "one larger, as where norms are stored minus 1", own + np.float32(1)
            yield "one smaller, as where norms are stored minus 1", own - np.float32(1)
            yield "negative", -own
        return
    if not isinstance(own, Matrix):
        return
    data = np.asarray(own.data)
    for says, other in _moved(data, -2, "rows"):
        yield says, _matrix(own, other)
    if data.ndim == 3:
        for says, other in _moved(data, 0, "experts"):
            yield says, _matrix(own, other)
    blocks = own.cols // FORMATS[own.fmt].block_elems
    if blocks > 1:
        cut = data.reshape(*data.shape[:-1], blocks, -1)
        for says, other in _moved(cut, -2, "columns" if blocks == own.cols else "columns (block by block)"):
            yield says, _matrix(own, other)
    if data.ndim == 2 and own.rows == own.cols:
        values = np.ascontiguousarray(own.dequantize().T)
        yield "transposed", Matrix("F32", values.view(np.uint8).reshape(own.rows, -1), own.rows, own.cols)


def _matrix(own: Matrix, data: np.ndarray) -> Matrix:
    return Matrix(own.fmt, np.ascontiguousarray(data).reshape(own.data.shape), own.rows, own.cols)


def _moved(data: np.ndarray, axis: int, plural: str) -> Iterator[tuple[str, np.ndarray]]:
    n = data.shape[axis]
    if n < 2:
        return
    if n % 2 == 0:
        yield f"halves of its {plural} swapped", np.roll(data, n // 2, axis=axis)
        even = np.arange(n).reshape(n // 2, 2).T.ravel()
        yield f"even {plural} first, then odd ones", np.take(data, even, axis=axis)
        yield f"first and second half of its {plural} interleaved", np.take(data, np.argsort(even), axis=axis)
    yield f"{plural} in reverse order", np.flip(data, axis)
    yield f"{plural} moved by one", np.roll(data, 1, axis=axis)
    yield f"{plural} moved back by one", np.roll(data, -1, axis=axis)


def only_expert(expert: int) -> Fault:
    """Return hooks (as a Fault) that keep only one expert's part of the routed sum: an observation, not a mistake."""

    def make(total: Any) -> Any:
        def part(mid: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
            return total(np.ascontiguousarray(mid * (ids == expert)[..., None], np.float32), ids, w, act)

        return part

    return Fault(f"only_expert_{expert}", f"expert {expert} alone", _op("expert_sum", make))
