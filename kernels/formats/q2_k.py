"""Q2_K: 84 bytes for 256 weights, 2-bit codes in 16 groups with 4-bit scales and minima (model.md 2.3).

    w = d * s_j * code - dmin * m_j        j = group of 16 weights, s_j / m_j = low / high nibble of scales[j]

Codes come in two halves of 128 weights. Weight 32 k + i of a half (k < 4, i < 32) is bits 2k, 2k+1 of byte i
of that half's 32 bytes.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])

Q2_K = block_format(
    "Q2_K", 10, 256, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 2, run=32, shifts=(0, 2, 4, 6))),
    group=16,
    scale=half(BLOCK, "d"), scales=Numbers(plane(BLOCK, "scales", 4, run=16)),
    minimum=half(BLOCK, "dmin"), minima=Numbers(plane(BLOCK, "scales", 4, run=16, shifts=(4,))),
    activation="q8k", quantizer="search", loss=0.33,
)  # fmt: skip
