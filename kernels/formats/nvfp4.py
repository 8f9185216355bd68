"""NVFP4: 36 bytes for 64 weights, 4-bit floats in 4 groups with scales of 8 bits (docs/explanation/model.md 2.3).

    w = s_j / 2 * (0, 1, 2, 3, 4, 6, 8, 12 and their negatives)[code]        j = group of 16 weights

A scale is an E4M3 number without sign; 0 and 0x7F are 0. In each group the low nibbles of its 8
bytes are weights 0 to 7.
"""

from __future__ import annotations

import numpy as np

from .format import Listed, Numbers, SmallFloat, block_format, plane

BLOCK = np.dtype([("scales", "u1", 4), ("qs", "u1", (4, 8))])
_TABLE = np.tile(SmallFloat(exponent=4, fraction=3, bias=8).table[:128], 2)  # half of each scale
_TABLE[0x7F] = 0

NVFP4 = block_format(
    "NVFP4", 40, 64, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=8, shifts=(0, 4))),
    small=SmallFloat(exponent=2, fraction=1, bias=0, negative_zero=False),
    group=16,
    scales=Listed(_TABLE, 0, 4),

)  # fmt: skip
