"""MXFP4: 17 bytes for 32 weights, an E8M0 scale and 4-bit floats (docs/explanation/model.md 2.3).

    w = 2^(e - 128) * (0, 1, 2, 3, 4, 6, 8, 12 and their negatives)[code]

The listed values are twice those of E2M1, so that they are integers, and the scale is half of E8M0's. Byte i of ``qs``
holds weight i in its low nibble and weight i + 16 in its high one. Unlike in E8M0 itself, e = 255 is a number, as in
ggml.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, PowerOfTwo, SmallFloat, block_format, plane

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])

MXFP4 = block_format(
    "MXFP4", 39, 32, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=16, shifts=(0, 4))),
    small=SmallFloat(exponent=2, fraction=1, bias=0, negative_zero=False),
    scale=PowerOfTwo(0, bias=128, nan=False),
    quantizer="search", loss=0.15,
)  # fmt: skip
