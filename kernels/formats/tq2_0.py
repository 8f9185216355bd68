"""TQ2_0: 66 bytes for 256 ternary weights, two bits each (docs/explanation/model.md 2.3).

    w = d * (code - 1)

Bits 2n and 2n + 1 of byte i of each half of ``qs`` hold weight 32 n + i of that half.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("qs", "u1", (2, 32)), ("d", "<f2")])

TQ2_0 = block_format(
    "TQ2_0", 35, 256, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 2, run=32, shifts=(0, 2, 4, 6)), zero=1),
    scale=half(BLOCK, "d"),
    activation="q8k",
)  # fmt: skip
