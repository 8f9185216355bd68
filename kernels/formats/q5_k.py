"""Q5_K: 176 bytes for 256 weights, 5-bit codes in 8 groups with 6-bit scales and minima.

    w = d * s_j * code - dmin * m_j        j = group of 32 weights

As Q4_K, with a fifth bit: that of weight 32 j + i is bit j of byte i of ``qh``.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane
from .q4_k import packed_minima, packed_scales

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("qh", "u1", 32), ("qs", "u1", (4, 32))])

Q5_K = block_format(
    "Q5_K", 13, 256, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=32, shifts=(0, 4)), plane(BLOCK, "qh", 1, run=32, shifts=range(8))),
    group=32,
    scale=half(BLOCK, "d"), scales=packed_scales(BLOCK),
    minimum=half(BLOCK, "dmin"), minima=packed_minima(BLOCK),
    activation="q8k", loss=0.045,
)  # fmt: skip
