"""F8_E4M3: 129 bytes for 128 weights, an E8M0 scale and 8-bit floats as codes (docs/explanation/model.md 2.3).

    w = 2^(e - 127) * E4M3FN(code)

A layout of our own for weights that are published as E4M3 with one scale per 128 x 128 weights: each row stores the
scales of its blocks, so that it can be computed from its own bytes alone. E4M3FN has 4 exponent bits of bias 7 and 3
bits of fraction, subnormal numbers, no infinity, and NaN where all seven bits are set (Micikevicius et al. 2022,
arXiv:2209.05433). E8M0 is a power of two; 255 is NaN (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, PowerOfTwo, SmallFloat, block_format, plane

BLOCK_WEIGHTS = 128
BLOCK = np.dtype([("e", "u1"), ("codes", "u1", BLOCK_WEIGHTS)])

E4M3 = SmallFloat(exponent=4, fraction=3, bias=7, nan=True)
E8M0 = PowerOfTwo(0, bias=127, nan=True)

F8_E4M3 = block_format(
    "F8_E4M3", -1, BLOCK_WEIGHTS, BLOCK,
    codes=Numbers(plane(BLOCK, "codes", 8, run=BLOCK_WEIGHTS)),
    small=E4M3,
    scale=E8M0,
    loss=0.03,
)  # fmt: skip
