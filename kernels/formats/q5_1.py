"""Q5_1: 24 bytes for 32 weights, a half-precision scale and offset, and 5-bit codes.

    w = d * code + m

Codes lie as in Q5_0.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

Q5_1 = block_format(
    "Q5_1", 7, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4)), plane(BLOCK, "qh", 1, run=1, shifts=range(8))),
    scale=half(BLOCK, "d"), minimum=half(BLOCK, "m", -1.0),
    activation="a8", loss=0.045,
)  # fmt: skip
