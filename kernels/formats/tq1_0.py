"""TQ1_0: 54 bytes for 256 ternary weights, five base-3 digits a byte (docs/explanation/model.md 2.3).

w = d * digit        digits -1, 0, 1
"""

from __future__ import annotations

import numpy as np

from .format import Trits, block_format, half

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])

TQ1_0 = block_format(
    "TQ1_0", 34, 256, BLOCK,
    codes=Trits(((0, 32, 5), (32, 16, 5), (48, 4, 4))),
    scale=half(BLOCK, "d"),
    activation="q8k",
)  # fmt: skip
