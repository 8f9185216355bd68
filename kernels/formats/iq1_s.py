"""IQ1_S: 50 bytes for 256 weights, octets of a ternary codebook of 2048 in 8 groups (docs/explanation/model.md 2.3).

    w = d * (2 s_j + 1) * (value +- 1/8)        j = group of 32 weights

Word j of ``qh`` holds 3 more bits for the index of each of its four octets, the scale in bits 12 to 14, and in bit 15
whether 1/8 is taken away. The codebook here is eight times ggml's, so that values are integers, the scale an eighth.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, Plane, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
_WORDS = [34 + 2 * group for group in range(8)]

IQ1_S = block_format(
    "IQ1_S", 19, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq1"] * 8,
        index=Numbers(
            plane(BLOCK, "qs", 8, run=32),
            Plane(3, 1, tuple((word + bit // 8, bit % 8) for word in _WORDS for bit in (0, 3, 6, 9))),
        ),
        shift=Numbers(Plane(1, 1, tuple((word + 1, 7) for word in _WORDS for _ in range(4)))),
    ),
    group=32,
    scale=half(BLOCK, "d", factor=0.125),
    scales=Numbers(Plane(3, 1, tuple((word + 1, 4) for word in _WORDS)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
