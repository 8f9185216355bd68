"""Q4_1: 20 bytes for 32 weights, a half-precision scale and offset, and 4-bit codes.

    w = d * code + m

Codes lie as in Q4_0.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])

Q4_1 = block_format(
    "Q4_1", 3, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4))),
    scale=half(BLOCK, "d"), minimum=half(BLOCK, "m", -1.0),
    activation="a8", loss=0.09,
)  # fmt: skip
