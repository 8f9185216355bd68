"""Q8_0: 34 bytes for 32 weights, a half-precision scale and signed bytes (docs/explanation/model.md 2.3).

w = d * q
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])

Q8_0 = block_format(
    "Q8_0", 8, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "q", 8, run=32), signed=True),
    scale=half(BLOCK, "d"),
    activation="a8", quantizer="blocks", loss=0.007,
)  # fmt: skip
