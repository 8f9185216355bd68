"""F32, F16, BF16, I32, I64: formats of single values without blocks (docs/explanation/model.md 2.3)."""

from __future__ import annotations

import numpy as np

from .format import block_format

F32 = block_format("F32", 0, 1, np.dtype("<f4"), quantizer="exact", loss=0.0)
F16 = block_format("F16", 1, 1, np.dtype("<f2"), quantizer="exact", loss=3e-4)
BF16 = block_format("BF16", 30, 1, np.dtype("<u2"), quantizer="exact", loss=2e-3)
I32 = block_format("I32", 26, 1, np.dtype("<i4"), loss=0.0)  # exact up to 2^24, far beyond any expert id
I64 = block_format("I64", 27, 1, np.dtype("<i8"))
