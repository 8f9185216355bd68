"""Formats without a device decoder, stored as bfloat16: F8_E4M3 and MXFP4.

Their weights are powers of two times numbers of at most four bits, which bfloat16 holds exactly within its exponent
range (from 2^-126 on). They take two to four times the memory of the file.
"""

from __future__ import annotations

import numpy as np

from ...formats import FORMATS
from ...formats.matrix import Matrix
from .units import UNITS

WIDE = tuple(name for name, fmt in FORMATS.items() if fmt.codes is not None and name not in UNITS)
_STEP = 1 << 22
"""Weights converted at once."""


def widened(w: Matrix) -> Matrix:
    """Return ``w`` in a format that kernels of this backend read: ``w`` itself if it already is."""
    if w.fmt not in WIDE:
        return w
    rows = np.ascontiguousarray(w.data).reshape(-1, w.row_bytes)
    out = np.empty((len(rows), w.cols), "<u2")
    decode = FORMATS[w.fmt].dequantize
    step = max(1, _STEP // w.cols)
    for at in range(0, len(rows), step):
        out[at : at + step] = decode(rows[at : at + step]).view(np.uint32) >> 16
    return Matrix("BF16", out.view(np.uint8).reshape(*w.data.shape[:-1], 2 * w.cols), w.rows, w.cols)


def placed_bytes(w: Matrix) -> int:
    """Return the bytes that ``w`` takes on the device."""
    return 2 * w.nbytes // w.row_bytes * w.cols if w.fmt in WIDE else w.nbytes
