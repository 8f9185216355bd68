"""IQ4_NL: 18 bytes for 32 weights, a half-precision scale and 4-bit codes of sixteen uneven levels.

    w = d * LEVELS[code]

Codes lie as in Q4_0. The levels are denser around zero, where most weights are.
"""

from __future__ import annotations

import numpy as np

from .format import Levels, Numbers, block_format, half, plane

LEVELS = Levels((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

IQ4_NL = block_format(
    "IQ4_NL", 20, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4))),
    small=LEVELS,
    scale=half(BLOCK, "d"),
    activation="a8", loss=0.085,
)  # fmt: skip
