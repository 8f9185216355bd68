"""Q5_0: 22 bytes for 32 weights, a half-precision scale and 5-bit codes around 16.

    w = d * (code - 16)

The low four bits lie as in Q4_0; bit i of the four bytes ``qh`` is the fifth one of weight i.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

Q5_0 = block_format(
    "Q5_0", 6, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4)), plane(BLOCK, "qh", 1, run=1, shifts=range(8)), zero=16),
    scale=half(BLOCK, "d"),
    activation="a8", loss=0.05,
)  # fmt: skip
