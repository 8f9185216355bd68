"""Q3_K: 110 bytes for 256 weights, 3-bit codes around 4 in 16 groups with 6-bit scales around 32.

    w = d * (s_j - 32) * (code - 4)        j = group of 16 weights

The low two bits of the codes lie as in Q2_K. The third bit of weight 32 k + i is bit k of byte i of ``hmask``. The low
four bits of the scales are the nibbles of the first eight bytes of ``packed``, all low nibbles first; the high two bits
of scales 4 k .. 4 k + 3 are bits 2k, 2k+1 of its last four.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", (2, 32)), ("packed", "u1", 12), ("d", "<f2")])

Q3_K = block_format(
    "Q3_K", 11, 256, BLOCK,
    codes=Numbers(
        plane(BLOCK, "qs", 2, run=32, shifts=(0, 2, 4, 6)), plane(BLOCK, "hmask", 1, run=32, shifts=range(8)), zero=4
    ),
    group=16,
    scale=half(BLOCK, "d"),
    scales=Numbers(
        plane(BLOCK, "packed", 4, run=8, places=[(0, 0), (0, 4)]),
        plane(BLOCK, "packed", 2, run=4, places=[(8, 0), (8, 2), (8, 4), (8, 6)]),
        zero=32,
    ),
    activation="q8k", loss=0.2,
)  # fmt: skip
