"""A weight matrix as it lies in the file: raw block bytes and the name of their format, never expanded whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Matrix:
    """A (rows, cols) matrix, or a stack of them (experts), over raw GGUF bytes.

    fmt    format name, a key of ``ds4ref.kernels.formats.FORMATS``
    data   uint8, (rows, row_bytes) or (experts, rows, row_bytes), C-contiguous; usually a view of the mapped file
    """

    fmt: str
    data: np.ndarray
    rows: int
    cols: int

    @property
    def experts(self) -> int:
        """Number of stacked matrices, 0 for a plain one."""
        return self.data.shape[0] if self.data.ndim == 3 else 0

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.data.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix or stack."""
        return self.data.nbytes

    def expert(self, index: int) -> Matrix:
        """Matrix ``index`` of a stack, as a view."""
        return Matrix(self.fmt, self.data[index], self.rows, self.cols)

    def rows_at(self, ids: np.ndarray) -> np.ndarray:
        """Rows ``ids`` (T,) of a plain matrix, all of them there, as float32 (T, cols)."""
        return Matrix(self.fmt, self.data[ids], len(ids), self.cols).dequantize()

    def dequantize(self) -> np.ndarray:
        """All values as float32, (rows, cols) or (experts, rows, cols). For tests and reference code."""
        from . import FORMATS

        return FORMATS[self.fmt].dequantize(self.data)
