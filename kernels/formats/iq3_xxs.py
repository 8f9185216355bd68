"""IQ3_XXS: 98 bytes for 256 weights, quads of a codebook of 256 in 8 groups (docs/explanation/model.md 2.3).

    w = d * (0.5 + s_j) / 2 * sign * magnitude        j = group of 32 weights

Word j of ``words`` holds four 7-bit numbers for signs, as in IQ2_XXS, and the scale in its top four bits.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, Plane, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("words", "<u4", 8)])
_WORDS = [66 + 4 * group for group in range(8)]

IQ3_XXS = block_format(
    "IQ3_XXS", 18, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq3_xxs"],
        index=Numbers(plane(BLOCK, "qs", 8, run=64)),
        signs=Numbers(Plane(7, 1, tuple((word + bit // 8, bit % 8) for word in _WORDS for bit in (0, 7, 14, 21)))),
    ),
    group=32,
    scale=half(BLOCK, "d", factor=0.25),
    scales=Numbers(Plane(4, 1, tuple((word + 3, 4) for word in _WORDS)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
