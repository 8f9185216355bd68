"""Formats for which there is no decoder on the GPU: their weights are stored there in a float format that holds them
exactly.

Weights of F8_E4M3 and MXFP4 are powers of two times numbers of at most four bits: bfloat16 within its exponent range
(from 2^-126 on), two to four times the memory of the file. Those of Q4_1 and Q5_1 are sums: float32, five to six times
the memory.
"""

from __future__ import annotations

import numpy as np

from ...formats import FORMATS
from ...formats.format import PowerOfTwo
from ...formats.matrix import Matrix
from .units import UNITS

WIDE = tuple(name for name, fmt in FORMATS.items() if fmt.codes is not None and name not in UNITS)
_STEP = 1 << 22
"""Weights converted at once."""


def _target(fmt: str) -> tuple[str, np.dtype]:
    """Return the name of the format that holds weights of ``fmt`` exactly, and the dtype in which to write them."""
    if isinstance(FORMATS[fmt].scale, PowerOfTwo):
        return "BF16", np.dtype("<u2")
    return "F32", np.dtype("<f4")


def widened(w: Matrix) -> Matrix:
    """Return ``w`` in a format that kernels of this backend read: ``w`` itself if it already is."""
    if w.fmt not in WIDE:
        return w
    rows = np.ascontiguousarray(w.data).reshape(-1, w.row_bytes)
    fmt, number = _target(w.fmt)
    out = np.empty((len(rows), w.cols), number)
    decode = FORMATS[w.fmt].dequantize
    step = max(1, _STEP // w.cols)
    for at in range(0, len(rows), step):
        weights = decode(rows[at : at + step])
        out[at : at + step] = weights if fmt == "F32" else weights.view(np.uint32) >> 16
    return Matrix(fmt, out.view(np.uint8).reshape(*w.data.shape[:-1], out.itemsize * w.cols), w.rows, w.cols)


def placed_bytes(w: Matrix) -> int:
    """Return the bytes that ``w`` takes on the device."""
    return _target(w.fmt)[1].itemsize * (w.nbytes // w.row_bytes) * w.cols if w.fmt in WIDE else w.nbytes
