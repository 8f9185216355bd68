"""Compare two tensors row by row: a mean over a whole matrix hides a single row that was lost.

found = compared(one, other)      found.error: of all rows together; found.worst: of row found.row
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ds4ref.kernels.formats import ApartRows, Matrix

MOST_WEIGHTS = 1 << 27
"""Weights of a tensor that are compared; of larger ones (stacks of experts), rows spread evenly over it."""

STEP = 1 << 22
"""Weights decoded at once."""

FAINT = 1e-3
"""A row of less than this share of the mean row's size is compared with that: a format has no scale for it, and it does
not matter."""

LOST = 0.9
"""Relative error from which a row counts as lost, however coarse its format: of a row of zeros it is 1."""

SLACK = 1.5
"""Error of the worst row allowed as a multiple of that of all rows together."""


class Compared(NamedTuple):
    """Relative rms error of ``other`` against ``one``: of everything, and of the worst row, with its number."""

    error: float
    worst: float = 0.0
    row: int = 0


def most_of_a_row(loss: float) -> float:
    """Return the error that a row may have if all rows together may have ``loss``."""
    return min(SLACK * loss, max(LOST, loss))


def compared(one: Any, other: Any) -> Compared:
    """Compare two matrices or arrays of one shape; an array of rank 1 is a single row, which is not told apart."""
    if not isinstance(one, Matrix):
        a, b = (np.asarray(x, np.float64).reshape(1, -1) for x in (one, other))
        return Compared(_total(*_squares(a, b)))
    if one.fmt == other.fmt and isinstance(one.data, np.ndarray) and np.array_equal(one.data, other.data):
        return Compared(0.0)
    chosen = _chosen(int(np.prod(one.data.shape[:-1])), one.cols)
    step = max(1, STEP // one.cols)
    sums = np.zeros((3, len(chosen)))
    for at in range(0, len(chosen), step):
        rows = chosen[at : at + step]
        a, b = (Matrix(w.fmt, _rows(w, rows), len(rows), w.cols).dequantize() for w in (one, other))
        sums[:, at : at + step] = _squares(a, b)
    miss, size, _ = sums
    finite = np.isfinite(miss)
    least = FAINT**2 * size[np.isfinite(size)].mean() if finite.any() else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(miss == 0, 0.0, np.sqrt(miss / np.maximum(size, least)))
    errors[~finite] = np.inf
    row = int(errors.argmax())
    return Compared(_total(*sums), float(errors[row]), int(chosen[row]))


def _rows(w: Matrix, numbers: np.ndarray) -> np.ndarray:
    """Return rows (n, row_bytes) of a matrix or stack, numbered through all of its matrices."""
    if isinstance(w.data, ApartRows):
        return w.data.numbered(numbers)
    return w.data.reshape(-1, w.row_bytes)[numbers]


def _chosen(rows: int, cols: int) -> np.ndarray:
    most = max(1, MOST_WEIGHTS // cols)
    return np.arange(rows) if rows <= most else np.unique(np.linspace(0, rows - 1, most).astype(np.int64))


def _squares(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sums of squares of b - a, of a and of b, by row."""
    with np.errstate(invalid="ignore", over="ignore"):
        miss, size, own = (np.einsum("ij,ij->i", v, v, dtype=np.float64) for v in (b - a, a, b))
    return miss, size, own


def _total(miss: np.ndarray, size: np.ndarray, own: np.ndarray) -> float:
    """Return the relative error of all rows; infinity if only one of the two is zero."""
    if miss.sum() == 0:
        return 0.0
    if size.sum() == 0 or own.sum() == 0:
        return float("inf")
    with np.errstate(invalid="ignore"):
        return float(np.sqrt(miss.sum() / size.sum()))
