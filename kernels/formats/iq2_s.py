"""IQ2_S: 82 bytes for 256 weights, octets of a codebook of 1024 in 16 groups (docs/explanation/model.md 2.3).

    w = d * (0.5 + s_j) / 4 * sign * magnitude        j = group of 16 weights

Octet k has index ``qs[k]``, with bits 2 (k mod 4) and the next of ``qh[k / 4]`` above it; bit i of ``signs[k]`` is set
if weight i is negative.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])

IQ2_S = block_format(
    "IQ2_S", 22, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq2_s"],
        index=Numbers(plane(BLOCK, "qs", 8, run=32), plane(BLOCK, "qh", 2, run=1, shifts=(0, 2, 4, 6))),
        signs=Numbers(plane(BLOCK, "signs", 8, run=32)),
    ),
    group=16,
    scale=half(BLOCK, "d", factor=0.125),
    scales=Numbers(plane(BLOCK, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
