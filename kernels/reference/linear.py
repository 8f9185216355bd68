"""Matrix products on quantized weights: y[o] = sum_i W[o, i] x[i]. No linear layer of this model has a bias."""

from __future__ import annotations

import numpy as np

from ..formats.matrix import Matrix
from .activations import rounded


def _product(x: np.ndarray, w: Matrix) -> np.ndarray:
    return (x @ w.dequantize().astype(np.float64).T).astype(np.float32)


def linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """Multiply x (T, n), rounded as ``act`` says, by a matrix -> (T, rows) (docs/explanation/model.md 10.2)."""
    return _product(rounded(x, act), w)


def grouped_linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """Multiply x (T, G, n) by a block-diagonal matrix -> (T, rows): weight rows g*r .. (g+1)*r - 1 multiply only the n
    inputs of group g (model.md 4)."""
    groups = x.shape[1]
    r = w.rows // groups
    parts = [
        linear(np.ascontiguousarray(x[:, g]), Matrix(w.fmt, w.data[g * r : (g + 1) * r], r, w.cols), act)
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1)


def expert_linear(x: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """Multiply x (T, n) by the matrices of experts ids (T, K) -> (T, K, rows)."""
    out = np.empty((*ids.shape, w.rows), np.float32)
    xr = rounded(x, act)
    for e in np.unique(ids):
        t, slot = np.nonzero(ids == e)
        out[t, slot] = _product(xr[t], w.expert(int(e)))
    return out


def expert_sum(mid: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
    """Multiply mid (T, K, ff) by the matrices of experts ids (T, K) and add the K results in order -> (T, rows)."""
    T, K = ids.shape
    parts = np.empty((T, K, w.rows), np.float32)
    for e in np.unique(ids):
        t, slot = np.nonzero(ids == e)
        parts[t, slot] = _product(rounded(mid[t, slot], act), w.expert(int(e)))
    return parts.astype(np.float64).sum(axis=1).astype(np.float32)


def embed(table: Matrix, ids: np.ndarray) -> np.ndarray:
    """Return rows ``ids`` (T,) of the embedding table as float32 (T, D)."""
    return table.rows_at(ids)


def take_rows(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return rows ``ids`` (T,) of an int32 table (V, K)."""
    return table[ids]


def advise(ids: np.ndarray, w: Matrix) -> None:
    """Do nothing: NumPy reads weights on demand."""
