"""IQ3_S: 110 bytes for 256 weights, quads of a codebook of 512 in 8 groups (docs/explanation/model.md 2.3).

    w = d * (1 + 2 s_j) * sign * magnitude        j = group of 32 weights

Quad q has index ``qs[q]``, with bit q mod 8 of ``qh[q / 8]`` above it; the bits of ``signs`` are those of the weights,
one after the other. Scale j is nibble j of ``scales``.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])

IQ3_S = block_format(
    "IQ3_S", 21, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq3_s"],
        index=Numbers(plane(BLOCK, "qs", 8, run=64), plane(BLOCK, "qh", 1, run=1, shifts=range(8))),
        signs=Numbers(plane(BLOCK, "signs", 8, run=32)),
    ),
    group=32,
    scale=half(BLOCK, "d"),
    scales=Numbers(plane(BLOCK, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
