"""A weight matrix as it lies in the file: raw block bytes and the name of their format, never expanded whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Matrix:
    """A (rows, cols) matrix, or a stack of them (experts), over raw GGUF bytes.

    fmt    format name, a key of ``kernels.formats.FORMATS``
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
        """Rows ``ids`` (T,) of a plain matrix as float32 (T, cols). IndexError for a row that is not there."""
        if ids.size and (ids.min() < 0 or ids.max() >= self.rows):
            raise IndexError(f"a row lies outside 0..{self.rows - 1}")
        return Matrix(self.fmt, self.data[ids], len(ids), self.cols).dequantize()

    def dequantize(self) -> np.ndarray:
        """All values as float32, (rows, cols) or (experts, rows, cols). For tests and reference code."""
        from . import FORMATS

        decode = FORMATS[self.fmt].dequantize
        if decode is None:
            raise ValueError(f"format {self.fmt} has no dequantizer")
        return decode(self.data)
