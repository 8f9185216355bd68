"""Q4_0: 18 bytes for 32 weights, a half-precision scale and 4-bit codes around 8.

    w = d * (code - 8)

Byte i of ``qs`` holds weight i in its low nibble and weight i + 16 in its high one.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

Q4_0 = block_format(
    "Q4_0", 2, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4)), zero=8),
    scale=half(BLOCK, "d"),
    activation="a8", loss=0.1,
)  # fmt: skip
