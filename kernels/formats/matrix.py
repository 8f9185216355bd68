"""A weight matrix as stored in the file: raw block bytes and the name of their format, not decoded to floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .apart import ApartRows


@dataclass(frozen=True)
class Matrix:
    """A (rows, cols) weight matrix, or a stack of them (one per expert), as raw bytes of a storage format.

    fmt    format name, a key of ``ds4ref.kernels.formats.FORMATS``
    data   uint8, (rows, row_bytes) or (experts, rows, row_bytes), C-contiguous; usually a view of the mapped file.
           ``ApartRows`` if codes and scales are stored apart: it acts like such an array, but indexing it copies
    """

    fmt: str
    data: Any
    rows: int
    cols: int

    @property
    def layout(self) -> str:
        """Return the name by which kernels for these bytes are found: the format's or, if codes and scales are stored
        apart, that of their layout, such as "MXFP4.apart"."""
        return self.data.layout.name if isinstance(self.data, ApartRows) else self.fmt

    @property
    def experts(self) -> int:
        """Return the number of stacked matrices, 0 for a plain matrix."""
        return self.data.shape[0] if self.data.ndim == 3 else 0

    @property
    def row_bytes(self) -> int:
        """Return the number of bytes from one row to the next."""
        return self.data.shape[-1]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the whole matrix or stack."""
        return self.data.nbytes

    def expert(self, index: int) -> Matrix:
        """Return matrix ``index`` of a stack, as a view."""
        return Matrix(self.fmt, self.data[index], self.rows, self.cols)

    def rows_at(self, ids: np.ndarray) -> np.ndarray:
        """Decode rows ``ids`` (T,) of a plain matrix to float32 (T, cols); all ids must be in range."""
        return Matrix(self.fmt, self.data[ids], len(ids), self.cols).dequantize()

    def dequantize(self) -> np.ndarray:
        """Decode all values to float32, (rows, cols) or (experts, rows, cols), for tests and reference code."""
        from . import FORMATS

        if isinstance(self.data, ApartRows):
            return self.data.dequantize()
        return FORMATS[self.fmt].dequantize(self.data)
