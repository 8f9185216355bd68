"""IQ4_XS: 136 bytes for 256 weights, the levels of IQ4_NL in 8 groups with 6-bit scales around 32.

    w = d * (s_j - 32) * LEVELS[code]        j = group of 32 weights

The low four bits of scale j are nibble j of ``low``, its high two bits are bits 2j, 2j+1 of the 16-bit ``high``. The
codes of a group lie as in Q4_0.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane
from .iq4_nl import LEVELS

BLOCK = np.dtype([("d", "<f2"), ("high", "u1", 2), ("low", "u1", 4), ("qs", "u1", (8, 16))])

IQ4_XS = block_format(
    "IQ4_XS", 23, 256, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4))),
    small=LEVELS,
    group=32,
    scale=half(BLOCK, "d"),
    scales=Numbers(
        plane(BLOCK, "low", 4, run=1, shifts=(0, 4)), plane(BLOCK, "high", 2, run=1, shifts=(0, 2, 4, 6)), zero=32
    ),
    activation="q8k", loss=0.09,
)  # fmt: skip
