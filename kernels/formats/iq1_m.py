"""IQ1_M: 56 bytes for 256 weights, the codebook of IQ1_S in 16 groups, without a field for d (model.md 2.3).

    w = d * (2 s_j + 1) * (value +- 1/8)        j = group of 16 weights

Nibble k of ``qh`` holds 3 more bits for the index of octet k, and in its top bit whether 1/8 is taken away. Word j / 4
of ``scales`` holds scale j at bit 3 (j mod 4); the top nibbles of the four words are d, lowest first.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, Plane, ScatteredHalf, block_format, plane

BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
_WORDS = [48 + 2 * word for word in range(4)]

IQ1_M = block_format(
    "IQ1_M", 29, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq1"] * 8,
        index=Numbers(plane(BLOCK, "qs", 8, run=32), plane(BLOCK, "qh", 3, run=1, shifts=(0, 4))),
        shift=Numbers(plane(BLOCK, "qh", 1, run=1, shifts=(3, 7))),
    ),
    group=16,
    scale=ScatteredHalf((49, 51, 53, 55), factor=0.125),
    scales=Numbers(
        Plane(3, 1, tuple((word + bit // 8, bit % 8) for word in _WORDS for bit in (0, 3, 6, 9))), times=2, zero=-1
    ),
    activation="q8k",
)  # fmt: skip
